"""What scores a node's batches in this process. `rewards.run.actors` has the worker in another one."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, Protocol

import torch

from rewards.node import Node, Row
from rewards.types import Clip
from rl.errors import AuralignError

Columns = Mapping[str, Sequence[Any]]


class WorkerDied(AuralignError):
    """A worker's process ended; what it worked on may have nothing to do with it."""


class Worker(Protocol):
    """Scores one batch after the other with a node of its own."""

    ready: Future[None]
    """Done when the node's models are loaded; holds what loading them raised, in place of any answer."""

    def call(self, clips: Sequence[Clip], columns: Columns) -> Future[Sequence[Row]]:
        """The node's rows to come, or what it raised, or `WorkerDied`."""
        ...

    def leave(self) -> None:
        """No call will follow. One in progress is abandoned."""
        ...


class InlineWorker:
    """Scores in the caller's thread: `call` returns when it is done."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.ready: Future[None] = Future()
        node.load()
        self.ready.set_result(None)

    def call(self, clips: Sequence[Clip], columns: Columns) -> Future[Sequence[Row]]:
        return _settle(Future(), self._node.score, clips, columns)

    def leave(self) -> None:
        """Nothing to end."""


class ThreadWorker:
    """Scores in a thread, which doesn't keep the process alive when a call hangs.

    ``torch_threads``: threads that torch uses in this one; None leaves torch's default.
    """

    def __init__(self, node: Node, torch_threads: int | None) -> None:
        self.ready: Future[None] = Future()
        self._calls: SimpleQueue[tuple[Future, Sequence[Clip], Columns] | None] = SimpleQueue()
        started = threading.Event()
        # torch counts its threads per thread, but a count set in one is the default of those to come
        default = torch.get_num_threads()
        threading.Thread(target=self._work, args=(node, torch_threads, started), daemon=True).start()
        started.wait()
        torch.set_num_threads(default)

    def call(self, clips: Sequence[Clip], columns: Columns) -> Future[Sequence[Row]]:
        future: Future[Sequence[Row]] = Future()
        self._calls.put((future, clips, columns))
        return future

    def leave(self) -> None:
        self._calls.put(None)

    def _work(self, node: Node, torch_threads: int | None, started: threading.Event) -> None:
        if torch_threads is not None:
            torch.set_num_threads(torch_threads)
        started.set()
        _settle(self.ready, node.load)
        while call := self._calls.get():
            _settle(call[0], node.score, *call[1:])


def _settle(future: Future, function: Any, *arguments: Any) -> Future:
    """``future`` with what ``function(*arguments)`` returns or raises."""
    try:
        result = function(*arguments)
    except Exception as error:  # noqa: BLE001 - raised again where the future is read
        future.set_exception(error)
    else:
        future.set_result(result)
    return future
