"""A threshold as a factor: 1 inside the bounds, 0 outside."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewards.node import Node, option, reads
from rewards.types import Clip
from rl.errors import ConfigError


@dataclass
class Gate(Node):
    """1 where an output lies within the bounds, or on them, else 0. Multiply the total by it."""

    input: str = reads("number", "the output to test")
    at_most: float | None = option(None, "0 above this")
    at_least: float | None = option(None, "0 below this")

    def check(self) -> None:
        if self.at_most is None and self.at_least is None:
            raise ConfigError("a gate needs at_most or at_least, or it never closes")

    def score_clip(self, clip: Clip, **inputs: Any) -> float:
        value = inputs["input"]
        low = self.at_least is None or value >= self.at_least
        high = self.at_most is None or value <= self.at_most
        return float(low and high)
