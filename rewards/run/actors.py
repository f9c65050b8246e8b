"""A worker that is a Ray actor. Imported only where a node asks for one: Ray takes a second to import."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from rewards.node import Node, Row
from rewards.run.options import RunOptions
from rewards.run.workers import Columns, WorkerDied
from rewards.types import Clip
from rl.cluster import connect


class ActorWorker:
    """Scores in an actor of its own, on any node of the cluster that has its resources free.

    It is on the cluster that this process is connected to; without one, Ray is started on this machine. Ray
    gives the actor as many OpenMP threads as it has cores.
    """

    def __init__(self, node: Node, options: RunOptions) -> None:
        connect(None)
        cpus = 1 if options.num_cpus is None else options.num_cpus
        remote: Any = ray.remote(_Scorer)
        actor = remote.options(num_cpus=cpus, num_gpus=options.num_gpus)
        self._actor: Any = actor.remote(node)
        self.ready: Future[None] = _relay(self._actor.load.remote())

    def call(self, clips: Sequence[Clip], columns: Columns) -> Future[Sequence[Row]]:
        return _relay(self._actor.score.remote(clips, columns))

    def leave(self) -> None:
        ray.kill(self._actor)


class _Scorer:
    def __init__(self, node: Node) -> None:
        self.node = node

    def load(self) -> None:
        self.node.load()

    def score(self, clips: Sequence[Clip], columns: Columns) -> list[Row]:
        return list(self.node.score(clips, columns))


def _relay(reference: Any) -> Future:
    """Ray's answer, with the node's own exceptions as they were raised and Ray's as `WorkerDied`."""
    answer: Future = Future()

    def pass_on(done: Future) -> None:
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        elif isinstance(error, RayTaskError):
            answer.set_exception(error.cause)
        elif isinstance(error, RayError):
            # Ray's text begins with generalities and ends with the cause
            answer.set_exception(WorkerDied(f"a Ray actor died: {str(error).strip().splitlines()[-1]}"))
        else:
            answer.set_exception(error)

    reference.future().add_done_callback(pass_on)
    return answer
