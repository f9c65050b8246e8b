"""Processes that learn together: each trains on a share of a step's rollouts, all hold the same weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from rl.errors import ConfigError, LearnerLostError
from rl.seeds import derive_seed

BACKEND_CPU, BACKEND_GPU = "gloo", "cpu:gloo,cuda:nccl"
PATIENCE = timedelta(days=7)
"""How long the others wait while the first samples, scores and evaluates; a death is noticed at once."""

T = TypeVar("T")


@dataclass(frozen=True)
class Learners:
    """This process's place, ``rank``, among ``size`` learners. The first one samples, scores and writes.

    All learners must make the calls of these methods in the same order. Where one of them has died, the
    others' calls raise `LearnerLostError`.
    """

    rank: int = 0
    size: int = 1

    @property
    def first(self) -> bool:
        """Whether this is the one that samples, scores and writes."""
        return self.rank == 0

    def blocks(self, count: int) -> list[range]:
        """Each learner's share of ``count`` things: blocks of neighbours, which keeps groups together."""
        bounds = [count * rank // self.size for rank in range(self.size + 1)]
        return [range(low, high) for low, high in pairwise(bounds)]

    def seed(self, seed: int) -> int:
        """A seed for this learner alone; the first one's is ``seed``."""
        return seed if self.first else derive_seed(seed, "learner", self.rank)

    def deal(self, hands: Callable[[], Sequence[T]]) -> T:
        """One of the ``size`` objects that ``hands`` makes, which only the first learner calls."""
        if self.size == 1:
            return hands()[0]
        made = list(hands()) if self.first else None
        received: list[Any] = [None]
        with _together(self.rank):
            dist.scatter_object_list(received, made)
        return received[0]

    def add(self, sums: Mapping[str, Tensor]) -> dict[str, float]:
        """The learners' scalars of the same names added up; of those named ``max_`` the largest."""
        if self.size == 1:
            return {name: float(value) for name, value in sums.items()}
        names = sorted(sums)
        own = torch.tensor([float(sums[name]) for name in names], dtype=torch.float64)
        table = torch.empty(self.size, len(names), dtype=torch.float64)
        with _together(self.rank):
            dist.all_gather(list(table.unbind()), own)
        largest, added = table.amax(0), table.sum(0)
        return {
            name: float(largest[i] if name.startswith("max_") else added[i]) for i, name in enumerate(names)
        }

    def most(self, count: int) -> int:
        """The largest of the learners' counts."""
        return int(self.add({"max_count": torch.tensor(count)})["max_count"])

    def add_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Give each parameter the sum of its gradients on all learners; one without a gradient counts as 0.

        A learner's loss is already over the whole step's normaliser, so that the sum is the gradient of one
        process that has all rollouts.
        """
        if self.size == 1:
            return
        grads = []
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            grads.append(parameter.grad)
        flat = torch.cat([grad.flatten() for grad in grads])
        with _together(self.rank):
            dist.all_reduce(flat)
        for grad, summed in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
            grad.copy_(summed.view_as(grad))


ALONE = Learners()


def launched() -> bool:
    """Whether a launcher (torchrun, accelerate, Ray Train) has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def restarts() -> int:
    """How often torchrun or accelerate has started the learners again, after one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


@contextmanager
def joined(expected: int) -> Iterator[Learners]:
    """This process among those that its launcher started; alone where there was none.

    Raises `ConfigError` when ``expected``, `cluster.learners`, is neither 1 nor as many as were started.
    """
    if not launched():
        yield Learners()
        return
    size = int(os.environ["WORLD_SIZE"])
    if expected not in (1, size):
        raise ConfigError(
            f"cluster.learners: {expected}, but the launcher started {size} processes; start as many, or "
            "leave it out"
        )
    own = not dist.is_initialized()  # Ray Train makes the group itself
    if own:
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        backend = BACKEND_GPU if torch.cuda.is_available() else BACKEND_CPU
        store, rank, _ = next(rendezvous("env://"))
        # torchrun's store outlives a restart, and with it the addresses of learners that are gone
        store = PrefixStore(f"start_{restarts()}", store)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=PATIENCE)
    try:
        yield Learners(dist.get_rank(), size)
    finally:
        if own:
            dist.destroy_process_group()


@contextmanager
def _together(rank: int) -> Iterator[None]:
    """Around a call that all learners make: torch's errors, raised where another is gone, as ours."""
    try:
        yield
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise LearnerLostError(
            f"cluster.learners: learner {rank} has lost another one, which says why ({reason})"
        ) from error
