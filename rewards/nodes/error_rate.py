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
    cut: bool = option(True, "count at most 1; false: as benchmarks count, words too many can exceed it")
    also: str | None = option(
        None, "key of the prompt's meta with another spelling of the text; the lower rate counts"
    )

    def score_clip(self, clip: Clip, **inputs: Any) -> float:
        texts = [clip.spoken]
        if self.also is not None and isinstance(clip.meta.get(self.also), str):
            texts.append(clip.meta[self.also])
        return min(error_rate(text, inputs["of"], self.unit, self.normalise, cut=self.cut) for text in texts)
