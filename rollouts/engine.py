"""The contract of every engine that samples a Dual-AR policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

from rollouts.types import Prompt, Rollout, SamplingParams


class Engine(Protocol):
    """Samples rollouts. ``version`` counts weight loads and is stamped on each rollout."""

    version: int

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> list[Rollout]:
        """``n`` samples per prompt, prompt by prompt, sample indices ascending. The prompts' ids differ."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the named parameters (all others stay) and advance ``version``."""
        ...

    def sleep(self) -> None:
        """Lend the device's memory to the learner until `wake`; the weights are kept somewhere."""
        ...

    def wake(self) -> None:
        """Be ready to load weights and to sample again; an engine that is awake stays so."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


@runtime_checkable
class StreamingEngine(Engine, Protocol):
    """An engine that hands each rollout over when it is finished."""

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        """The rollouts of `generate` in the order in which they finish."""
        ...


def stream(
    engine: Engine, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
) -> Iterator[Rollout]:
    """The rollouts as they finish; of an engine that can't stream, all at its end."""
    if isinstance(engine, StreamingEngine):
        return engine.stream(prompts, n, sampling, seed)
    return iter(engine.generate(prompts, n, sampling, seed))


def in_order(rollouts: Iterable[Rollout], prompts: Sequence[Prompt]) -> list[Rollout]:
    """``rollouts`` as `Engine.generate` returns them: in the order of ``prompts``, then by sample index."""
    place = {prompt.id: i for i, prompt in enumerate(prompts)}
    return sorted(rollouts, key=lambda rollout: (place[rollout.prompt.id], rollout.sample_index))
