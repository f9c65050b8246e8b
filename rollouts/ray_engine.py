"""Several copies of an engine, each in a Ray actor, that sample as one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, RayTaskError
from torch import Tensor

from rl.cluster import check_room
from rl.errors import AuralignError, ClusterError
from rollouts.engine import CallStats, Engine, in_order, stream
from rollouts.types import Prompt, Rollout, SamplingParams

ATTEMPTS = 3  # a worker that dies this often without finishing anything is given up
PATIENCE = 5.0  # seconds until a look at whether what is waited for can still happen
_LOST = (RayActorError, NodeDiedError, ObjectLostError)

log = logging.getLogger(__name__)


class _Worker:
    """The actor. It does nothing but pass calls on to its engine."""

    engine: Engine

    def build(self, build: Callable[[], Engine]) -> int:
        """Make the engine; returns the process id."""
        self.engine = build()
        return os.getpid()

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        yield from stream(self.engine, prompts, n, sampling, seed)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        self.engine.load_weights(weights)

    def set_version(self, version: int) -> None:
        self.engine.version = version

    def stats(self) -> CallStats:
        return self.engine.stats

    def sleep(self) -> None:
        self.engine.sleep()

    def wake(self) -> None:
        self.engine.wake()

    def close(self) -> None:
        self.engine.close()


@dataclass
class _Shard:
    """A worker's share of a call, and the (prompt id, sample index) it has delivered so far."""

    worker: int
    prompts: Sequence[Prompt]
    delivered: set[tuple[str, int]] = field(default_factory=set)


class RayEngine:
    """Implements :class:`rollouts.engine.StreamingEngine` over ``workers`` copies of an engine.

    ``build`` makes one copy, in the worker's process; ``cpus`` and ``gpus`` are what Ray reserves for each.
    Each worker samples a block of consecutive prompts. One that dies, alone or with its node, is replaced by
    one with the same weights, which samples the whole block again: the same seeds in the same batches, hence
    the same rollouts. Those that had arrived before are not handed over twice.

    The process must be connected (`rl.cluster.connect`). Raises `ClusterError` when the workers don't fit on
    the cluster, or when one dies `ATTEMPTS` times in a row; an `AuralignError` of the engine as it is.
    """

    def __init__(self, build: Callable[[], Engine], workers: int, cpus: float, gpus: float) -> None:
        check_room(workers, cpus, gpus)
        self._build = build
        self._size = (workers, cpus, gpus)
        self._version = 0
        self._asleep = False
        self._loads: dict[frozenset[str], Any] = {}  # by parameter names, in the order of the last load
        self._deaths = [0] * workers
        self._actors = [self._actor() for _ in range(workers)]
        self._pids = [0] * workers
        building = [actor.build.remote(build) for actor in self._actors]
        for index, ready in enumerate(building):
            try:
                self._pids[index] = self._wait(ready)
            except _LOST as error:
                self._replace(index, error)

    @property
    def version(self) -> int:
        """Weight loads so far; setting it tells all workers."""
        return self._version

    @version.setter
    def version(self, version: int) -> None:
        self._everywhere("set_version", version)
        self._version = version

    @property
    def stats(self) -> CallStats:
        """The workers' together; of one that was replaced, since then."""
        return sum(self._everywhere("stats"), CallStats())

    @property
    def pids(self) -> list[int]:
        """The workers' process ids, each on its own node."""
        return list(self._pids)

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> list[Rollout]:
        """See :class:`rollouts.engine.Engine`."""
        return in_order(self.stream(prompts, n, sampling, seed), prompts)

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        """See :class:`rollouts.engine.StreamingEngine`."""

        def start(shard: _Shard) -> Any:
            actor = self._actors[shard.worker]
            return actor.stream.options(num_returns="streaming").remote(shard.prompts, n, sampling, seed)

        blocks = np.array_split(np.arange(len(prompts)), len(self._actors))
        shards = [_Shard(i, [prompts[p] for p in block]) for i, block in enumerate(blocks) if len(block)]
        running = {start(shard): shard for shard in shards}
        while running:
            done: list[Any] = ray.wait(list(running), num_returns=1)[0]
            ready, shard = done[0], running[done[0]]
            try:
                rollout = _get(next(ready))
            except StopIteration:
                del running[ready]
                self._deaths[shard.worker] = 0
                assert len(shard.delivered) == len(shard.prompts) * n, "an engine left rollouts out"
            except _LOST as error:
                del running[ready]
                self._replace(shard.worker, error)
                running[start(shard)] = shard
            else:
                key = (rollout.prompt.id, rollout.sample_index)
                if key not in shard.delivered:
                    shard.delivered.add(key)
                    yield rollout

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """To every worker, through Ray's object store. See :class:`rollouts.engine.Engine`."""
        stored = ray.put({name: tensor.detach().cpu() for name, tensor in weights.items()})
        self._everywhere("load_weights", stored)
        self._loads.pop(frozenset(weights), None)
        self._loads[frozenset(weights)] = stored
        self._version += 1

    def sleep(self) -> None:
        """See :class:`rollouts.engine.Engine`."""
        self._everywhere("sleep")
        self._asleep = True

    def wake(self) -> None:
        """See :class:`rollouts.engine.Engine`."""
        self._everywhere("wake")
        self._asleep = False

    def close(self) -> None:
        """End the workers, also those that are busy or not there yet; the connection to the cluster stays."""
        closing = [actor.close.remote() for actor in self._actors]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=PATIENCE)
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []

    def _actor(self) -> Any:
        _, cpus, gpus = self._size
        remote = ray.remote(num_cpus=cpus, num_gpus=gpus, scheduling_strategy="SPREAD")
        return remote(_Worker).remote()

    def _wait(self, ready: Any) -> Any:
        """The value of ``ready``, which a new worker will make as soon as the cluster has room for it."""
        while not ray.wait([ready], timeout=PATIENCE)[0]:
            check_room(*self._size)
        return _get(ready)

    def _everywhere(self, method: str, *arguments: Any) -> list[Any]:
        """What a method of every worker returns; one that has died is replaced first."""
        calls = [getattr(actor, method).remote(*arguments) for actor in self._actors]
        answers = []
        for index, call in enumerate(calls):
            while True:
                try:
                    answers.append(_get(call))
                    break
                except _LOST as error:
                    self._replace(index, error)
                    call = getattr(self._actors[index], method).remote(*arguments)
        return answers

    def _replace(self, index: int, error: Exception) -> None:
        """A new worker in the state of the one that died."""
        while True:
            reason = " ".join(str(error).split())
            log.warning("rollout worker %d (process %d) died: %s", index, self._pids[index], reason)
            self._deaths[index] += 1
            if self._deaths[index] >= ATTEMPTS:
                raise ClusterError(
                    f"rollouts.workers: worker {index} died {ATTEMPTS} times in a row ({reason}); "
                    "if it ran out of memory, lower rollouts.batch_size or rollouts.workers"
                ) from error
            ray.kill(self._actors[index])
            self._actors[index] = actor = self._actor()
            try:
                self._pids[index] = self._wait(actor.build.remote(self._build))
                for weights in self._loads.values():
                    _get(actor.load_weights.remote(weights))
                _get(actor.set_version.remote(self._version))
                if self._asleep:
                    _get(actor.sleep.remote())
                return
            except _LOST as again:
                error = again


def _get(reference: Any) -> Any:
    """Ray's value; an error that a user can act on as it was raised, without Ray's traceback in its text."""
    try:
        return ray.get(reference)
    except RayTaskError as error:
        if isinstance(error.cause, AuralignError):
            raise error.cause from error
        raise
