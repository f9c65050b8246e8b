"""The workers of one node."""

from __future__ import annotations

import copy
import logging
import math
from concurrent.futures import wait

from rewards.node import Node
from rewards.run.options import RunOptions
from rewards.run.workers import InlineWorker, ThreadWorker, Worker

log = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds after which a pool that waits for its models says so."""


class Pool:
    """Keeps ``options.workers`` workers for ``node``, which must not have loaded its models yet."""

    def __init__(self, node: Node, options: RunOptions, key: str) -> None:
        self.node, self.options, self.key = node, options, key
        self._idle: list[Worker] = []
        self._busy: list[Worker] = []

    @property
    def free(self) -> bool:
        """Whether `lend` has a worker to give."""
        return bool(self._idle)

    def fill(self) -> None:
        """Bring the pool to its size; the new workers begin to load their models."""
        while len(self._idle) + len(self._busy) < self.options.workers:
            self._idle.append(self._new_worker())

    def wait_until_loaded(self) -> None:
        """Wait until the free workers have their models. Raises what loading raises."""
        loading = {worker.ready for worker in self._idle}
        while late := wait(loading, PATIENCE).not_done:
            log.warning(
                "%s: %d workers still aren't there; Ray's wait until their num_cpus and num_gpus are free",
                self.key,
                len(late),
            )
        for future in loading:
            future.result()

    def lend(self) -> Worker:
        """A free worker, for one call: one that has its models, if there is any."""
        worker = next((worker for worker in self._idle if worker.ready.done()), self._idle[0])
        self._idle.remove(worker)
        self._busy.append(worker)
        return worker

    def take_back(self, worker: Worker) -> None:
        """The worker's call is finished."""
        self._busy.remove(worker)
        self._idle.append(worker)

    def replace(self, worker: Worker) -> None:
        """Give up a lent worker that hangs or died; a new one begins to load."""
        self.discard(worker)
        self.fill()

    def discard(self, worker: Worker) -> None:
        """Give up a lent worker; the next `fill` makes up for it."""
        self._busy.remove(worker)
        worker.leave()

    def close(self) -> None:
        """End all workers; `fill` begins anew."""
        for worker in (*self._idle, *self._busy):
            worker.leave()
        self._idle, self._busy = [], []

    def _new_worker(self) -> Worker:
        options = self.options
        if options.where == "inline":
            return InlineWorker(self.node)
        if options.where == "thread":
            threads = None if options.num_cpus is None else math.ceil(options.num_cpus)
            return ThreadWorker(copy.deepcopy(self.node), threads)
        from rewards.run.actors import ActorWorker

        return ActorWorker(self.node, options)
