"""Clips flow through a graph as they come: nodes that don't wait for each other run at the same time.

A node's batch is a fixed window of the order of submission (clips 0 to 31, 32 to 63, ...), less the clips
that it isn't asked about. So the same clips in the same order make the same batches wherever the nodes run
and however long they take, and a clip waits for nobody outside its windows.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from rewards.node import Node
from rewards.run.pool import Pool
from rewards.run.sample import Sample
from rewards.run.workers import Worker, WorkerDied
from rewards.types import Clip, ClipScore, Scores

if TYPE_CHECKING:
    from rewards.graph import RewardGraph

T = TypeVar("T")
TRIES = 3
"""Workers that may die on a batch before its clips are missing."""


@dataclass
class _Window:
    """A batch in the making: clips that belong to it, those whose fate is known, those to be asked about."""

    members: int = 0
    decided: int = 0
    asked: list[int] = field(default_factory=list)


@dataclass
class _Batch:
    clips: list[int]
    tries: int = 0


@dataclass
class _Lane:
    """One node's side of a stream."""

    name: str
    node: Node
    pool: Pool
    inputs: dict[str, str]
    before: int
    """How many nodes must be done with a clip first."""
    after: list[_Lane] = field(default_factory=list)
    """Lanes that wait for this one."""
    waiting: dict[int, int] = field(default_factory=dict)
    """By clip: how many of ``before`` aren't done with it."""
    windows: dict[int, _Window] = field(default_factory=lambda: defaultdict(_Window))
    ready: deque[_Batch] = field(default_factory=deque)

    @property
    def inline(self) -> bool:
        return self.pool.options.where == "inline"


@dataclass
class _Call:
    lane: _Lane
    batch: _Batch
    worker: Worker
    deadline: float | None = None


class Stream:
    """One pass of clips through a graph; made by `RewardGraph.stream`, used as a context manager.

    Only the caller's thread touches it: answers are taken, deadlines kept and inline nodes run within
    `submit`, `attend`, `rows` and `scores`. Leaving the context gives up what still runs.
    """

    def __init__(self, graph: RewardGraph) -> None:
        self._graph = graph
        self._samples: list[Sample] = []
        self._left: list[int] = []
        """By clip: how many nodes aren't done with it."""
        self._finished: deque[int] = deque()
        self._scored: dict[int, ClipScore] = {}
        self._calls: dict[Future, _Call] = {}
        self._ended = False
        lanes: dict[str, _Lane] = {}
        for name, node in graph.nodes.items():
            before = graph.before(name)
            lanes[name] = _Lane(name, node, graph.pools[name], graph.inputs[name], len(before))
            for earlier in before:
                lanes[earlier].after.append(lanes[name])
        self._lanes = list(lanes.values())

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls.values():
            call.lane.pool.discard(call.worker)
        self._calls.clear()

    def submit(self, clip: Clip) -> None:
        """Add a clip. Returns when its inline nodes have nothing to do; others go on in the background.

        What is incomplete waits for more clips until `rows` or `scores` say that there are none.
        """
        assert not self._ended, "the input has ended"
        index = len(self._samples)
        self._samples.append(Sample(clip))
        self._left.append(len(self._lanes))
        for lane in self._lanes:
            lane.windows[index // lane.pool.options.batch_size].members += 1
            lane.waiting[index] = lane.before
        for lane in self._lanes:
            if lane.before == 0:
                self._decide(lane, index)
        while self._step(block=False):
            pass

    def attend(self, coming: Future[T]) -> T:
        """What ``coming`` brings, once it is there; until then the clips submitted go their way."""
        while not coming.done():
            if not self._step(block=True, until=coming) and not self._calls:
                wait([coming])
        return coming.result()

    def rows(self) -> Iterator[tuple[int, ClipScore]]:
        """Place in the order of submission and score of every clip, as each is finished. Ends the input."""
        self._end()
        while len(self._scored) < len(self._samples):
            if not self._finished and not self._step(block=True) and not self._calls:
                raise RuntimeError("the graph's workers are lent to another stream; leave that one first")
            while self._finished:
                index = self._finished.popleft()
                graph = self._graph
                self._scored[index] = self._samples[index].score(
                    graph.total, graph.gates, graph.output_names, graph.nodes
                )
                yield index, self._scored[index]

    def scores(self) -> Scores:
        """All clips in the order of submission. Ends the input."""
        for _ in self.rows():
            pass
        return Scores.of([self._scored[i] for i in range(len(self._samples))], self._graph.output_names)

    def _end(self) -> None:
        self._ended = True
        for lane in self._lanes:
            for number in list(lane.windows):
                self._release(lane, number)

    def _decide(self, lane: _Lane, index: int) -> None:
        """All that the node waits for is done with the clip: it is asked, or passed over."""
        del lane.waiting[index]
        sample, number = self._samples[index], index // lane.pool.options.batch_size
        window = lane.windows[number]
        window.decided += 1
        reason = sample.lacks(lane.inputs.values())
        if reason:
            sample.miss(lane.name, lane.node, reason)
        else:
            window.asked.append(index)
        self._release(lane, number)
        if reason:
            self._done(lane, index)

    def _release(self, lane: _Lane, number: int) -> None:
        """Make a window's batch ready if no clip can join it any more."""
        window = lane.windows[number]
        full = self._ended or window.members == lane.pool.options.batch_size
        if full and window.decided == window.members:
            del lane.windows[number]
            if window.asked:
                lane.ready.append(_Batch(sorted(window.asked)))

    def _done(self, lane: _Lane, index: int) -> None:
        """The node is done with the clip: tell those that wait for it."""
        for later in lane.after:
            later.waiting[index] -= 1
            if later.waiting[index] == 0:
                self._decide(later, index)
        self._left[index] -= 1
        if self._left[index] == 0:
            self._finished.append(index)

    def _step(self, block: bool, until: Future | None = None) -> bool:
        """Start what can start, then take what is finished or overdue; whether there was any.

        ``block``: wait for it, until a call ends, comes to its deadline, or its worker is loaded, or until
        ``until`` is done.
        """
        self._start()
        if not self._calls:
            return False
        now = time.monotonic()
        others = set() if until is None else {until}
        for call in self._calls.values():
            seconds = call.lane.pool.options.max_seconds
            if seconds is not None and call.deadline is None:
                if call.worker.ready.done():
                    call.deadline = now + seconds
                else:
                    others.add(call.worker.ready)
        deadlines = [call.deadline for call in self._calls.values() if call.deadline is not None]
        patience = max(0.0, min(deadlines) - now) if deadlines else None
        finished = wait({*self._calls, *others}, patience if block else 0, FIRST_COMPLETED).done - others
        now = time.monotonic()
        for future, call in list(self._calls.items()):
            if future in finished:
                del self._calls[future]
                self._take(call, future)
            elif call.deadline is not None and now >= call.deadline:
                del self._calls[future]
                call.lane.pool.replace(call.worker)
                self._miss(call, f"no answer within {call.lane.pool.options.max_seconds:g} s")
                finished.add(future)
        return bool(finished)

    def _start(self) -> None:
        """Batches to every free worker; of the inline ones a single batch, since nothing else is seen to."""
        for lane in self._lanes:
            while not lane.inline and lane.ready and lane.pool.free:
                self._call(lane)
        for lane in self._lanes:
            if lane.inline and lane.ready:
                self._call(lane)
                return

    def _call(self, lane: _Lane) -> None:
        batch = lane.ready.popleft()
        samples = [self._samples[index] for index in batch.clips]
        columns = {key: [sample.read(source) for sample in samples] for key, source in lane.inputs.items()}
        worker = lane.pool.lend()
        try:
            future = worker.call([sample.clip for sample in samples], columns)
        except BaseException:  # an interrupt, in an inline node
            lane.pool.take_back(worker)
            raise
        self._calls[future] = _Call(lane, batch, worker)

    def _take(self, call: _Call, future: Future) -> None:
        lane, batch = call.lane, call.batch
        error = call.worker.ready.exception() or future.exception()
        if isinstance(error, WorkerDied):
            lane.pool.replace(call.worker)
            batch.tries += 1
            if batch.tries < TRIES:
                lane.ready.appendleft(batch)
            else:
                self._miss(call, f"{TRIES} workers died on its batch, the last: {error}")
            return
        lane.pool.take_back(call.worker)
        if error is not None:
            error.add_note(f"in the reward node {lane.name} ({type(lane.node).__name__})")
            raise error
        for index, row in zip(batch.clips, future.result(), strict=True):
            self._samples[index].take(lane.name, lane.node, row, closes=lane.name in self._graph.gates)
            self._done(lane, index)

    def _miss(self, call: _Call, reason: str) -> None:
        for index in call.batch.clips:
            self._samples[index].miss(call.lane.name, call.lane.node, reason)
            self._done(call.lane, index)
