"""The contract of every engine that samples a Dual-AR policy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from rollouts.types import Prompt, Rollout, SamplingParams


@dataclass(frozen=True)
class CallStats:
    """Of one call of an engine: prompt tokens of all samples, those of them that needn't be computed again,
    and how often a sample was preempted because the cache was full."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0

    def __add__(self, other: CallStats) -> CallStats:
        return CallStats(
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.preemptions + other.preemptions,
        )

    def metrics(self) -> dict[str, float]:
        """As docs/run_folder.md names them."""
        return {
            "rollout/prefix_cached": self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0,
            "rollout/preemptions": float(self.preemptions),
        }


class Engine(Protocol):
    """Samples rollouts. ``version`` counts weight loads and is stamped on each rollout."""

    version: int

    @property
    def stats(self) -> CallStats:
        """Of the last call that was read to its end."""
        ...

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
