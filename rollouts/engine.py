"""The contract of every engine that samples a Dual-AR policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from torch import Tensor

from rollouts.types import Prompt, Rollout, SamplingParams


class Engine(Protocol):
    """Samples rollouts. ``version`` counts weight loads and is stamped on each rollout."""

    version: int

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> list[Rollout]:
        """``n`` samples per prompt, prompt by prompt, sample indices ascending."""
        ...

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Replace the named parameters (all others stay) and advance ``version``."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...
