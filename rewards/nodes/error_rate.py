"""Character or word error rate of a transcript."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewards.node import Node, option, reads
from rewards.text import NORMALISERS, error_rate
from rewards.types import Clip


@dataclass
class ErrorRate(Node):
    """CER or WER of a transcript against ``Clip.spoken``, 0 (perfect) to 1. An empty transcript is 1."""

    of: str = reads("text", "the transcript")
    unit: str = option("char", "what errors are counted in", choices=("char", "word"))
    normalise: str = option("english", "how both texts are made comparable", choices=NORMALISERS)

    def score_clip(self, clip: Clip, **inputs: Any) -> float:
        return error_rate(clip.spoken, inputs["of"], self.unit, self.normalise)
