"""A gate against clips that no model should be asked about: too short, silent, or without a voice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import webrtcvad

from rewards.audio import SAMPLE_RATE, at_16k, level_dbfs
from rewards.node import Answer, Node, option
from rewards.types import Clip

FRAME = 480
"""Samples that the voice detector judges at once: 30 ms."""


@dataclass
class Sanity(Node):
    """1 for a clip worth scoring, else 0, and then ``floor`` is its total and no other node runs.

    Speech models misjudge silence and noise: a quality model gives faint noise more than shuffled speech, a
    voiceprint gives silence the same similarity to everyone, an ASR hears "thank you".
    """

    min_seconds: float = option(0.3, "shorter clips fail", at_least=0)
    min_level: float = option(-50.0, "clips whose RMS is below this fail (dB of full scale)", at_most=0)
    min_voiced: float = option(
        0.2, "clips with a smaller share of 30 ms frames with a voice fail", at_least=0, at_most=1
    )
    vad_mode: int = option(2, "how strict WebRTC's voice detector is, 0 to 3", at_least=0, at_most=3)
    floor: float = option(0.0, "the total of a clip that fails")

    gate: ClassVar[bool] = True

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        seconds = len(clip.audio) / clip.sample_rate
        if len(clip.audio) == 0 or seconds < self.min_seconds:
            return _fail(f"{seconds:.2f} s is shorter than {self.min_seconds:g} s", seconds=seconds)
        level = level_dbfs(clip.audio)
        if level < self.min_level:
            return _fail(f"{level:.1f} dBFS is quieter than {self.min_level:g} dBFS", seconds=seconds)
        voiced = voiced_share(at_16k(clip.audio, clip.sample_rate), self.vad_mode)
        found = {"seconds": seconds, "level": level, "voiced": voiced}
        if voiced < self.min_voiced:
            return _fail(f"a voice in {voiced:.0%} of the clip, less than {self.min_voiced:.0%}", **found)
        return Answer({"": 1.0}, found)


def voiced_share(audio: np.ndarray, mode: int) -> float:
    """Share of whole 30 ms frames of 16 kHz ``audio`` in which WebRTC's detector hears a voice."""
    pcm = np.round(np.clip(audio, -1, 1) * 32767).astype(np.int16)
    frames = pcm[: len(pcm) // FRAME * FRAME].reshape(-1, FRAME)
    if len(frames) == 0:
        return 0.0
    detector = webrtcvad.Vad(mode)
    return float(np.mean([detector.is_speech(frame.tobytes(), SAMPLE_RATE) for frame in frames]))


def _fail(why: str, **details: float) -> Answer:
    return Answer({"": 0.0}, {"failed": why, **details})
