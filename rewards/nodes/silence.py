"""How long a clip is silent: before, behind and between the speech."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rewards.audio import SAMPLE_RATE, at_16k
from rewards.node import Answer, Node, NodeError, option
from rewards.types import Clip

BLOCK = SAMPLE_RATE // 100
"""Samples in 10 ms."""


@dataclass
class Silence(Node):
    """Seconds of silence: ``.trailing`` behind the speech, ``.leading`` before it, ``.pause`` the longest in
    it.

    Blocks of 10 ms are silent where they are more than ``depth`` below the loudest one. A generation that
    doesn't stop shows as a long trailing silence.
    """

    depth: float = option(35.0, "dB below the loudest 10 ms from which others are silent", above=0)

    def outputs(self) -> tuple[str, ...]:
        return ("trailing", "leading", "pause")

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        audio = at_16k(clip.audio, clip.sample_rate)
        blocks = audio[: len(audio) // BLOCK * BLOCK].reshape(-1, BLOCK)
        power = np.mean(np.square(blocks, dtype=np.float64), axis=1)
        if not power.max(initial=0) > 0:
            raise NodeError("the clip is digital silence")
        sounding = np.flatnonzero(power >= power.max() * 10 ** (-self.depth / 10))
        gaps = np.diff(sounding) - 1
        step = BLOCK / SAMPLE_RATE
        return Answer(
            {
                "trailing": float((len(power) - 1 - sounding[-1]) * step),
                "leading": float(sounding[0] * step),
                "pause": float(gaps.max(initial=0) * step),
            }
        )
