"""Is the clip about as long as its text?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewards.node import Answer, Node, NodeError, option
from rewards.types import Clip


@dataclass
class Duration(Node):
    """1 while the length is within a factor of ``slack`` of the expected one, then falling as the ratio.

    With r = seconds / (``offset`` + ``per_character`` * characters of ``Clip.spoken``), the value is
    min(1, slack * min(r, 1/r)). Both figures are ours: measure them on your own voices.
    """

    per_character: float = option(0.06, "seconds expected per character, spaces included", above=0)
    offset: float = option(0.2, "seconds expected beside the characters", at_least=0)
    slack: float = option(1.5, "factor by which a clip may be longer or shorter without loss", at_least=1)

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        text = clip.spoken.strip()
        if not text:
            raise NodeError("no text to expect a duration from")
        seconds = len(clip.audio) / clip.sample_rate
        ratio = seconds / (self.offset + self.per_character * len(text))
        score = min(1.0, self.slack * min(ratio, 1 / ratio)) if ratio > 0 else 0.0
        return Answer({"": score}, {"seconds": seconds, "ratio": ratio})
