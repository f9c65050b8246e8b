"""Does a long clip keep the voice asked for? Similarity window by window.

The windows of 3 s every 1.5 s, their mean and standard deviation are those of Fish Audio S2's report (section
6.1.3), which uses WavLM-large. The drift is ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewards.audio import SAMPLE_RATE, at_16k
from rewards.catalogue import build_node
from rewards.node import Answer, Node, NodeError, Row, Value, option
from rewards.similarity import Similarity
from rewards.types import Clip


@dataclass
class VoiceDrift(Node):
    """Cosines of the clip's windows with ``Clip.reference``: ``.mean``, ``.std`` (of the whole population),
    and ``.drift``, the mean of the last third of the windows less that of the first.

    A clip shorter than a window is one window; what is left behind the last whole one isn't looked at.
    Windows without a voice print, such as silence, are left out. With fewer than two windows, spread and
    drift are missing, and so is everything for a clip without a reference.
    """

    encoder: str = option(
        "voiceprint", "node type that embeds voices", choices=("voiceprint", "ecapa", "wavlm")
    )
    window_s: float = option(3.0, "seconds of a window", above=0)
    hop_s: float = option(1.5, "seconds from one window to the next", above=0)
    _encoder: Any = field(default=None, init=False, repr=False, compare=False)

    def outputs(self) -> tuple[str, ...]:
        return ("mean", "std", "drift")

    def load(self) -> None:
        self._encoder = build_node({"type": self.encoder}, "voice_drift.encoder")
        assert isinstance(self._encoder, Similarity)
        self._encoder.load()

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        rows: list[Row] = []
        for clip in clips:
            try:
                rows.append(self._row(clip))
            except NodeError as error:
                rows.append(error)
        return rows

    def _row(self, clip: Clip) -> Answer:
        if clip.reference is None or clip.reference_rate is None:
            raise NodeError("the prompt names no reference voice")
        (reference,) = self._encoder.embed_references([(clip.reference, clip.reference_rate)])
        if isinstance(reference, NodeError):
            raise reference
        cut = windows(
            at_16k(clip.audio, clip.sample_rate),
            round(self.window_s * SAMPLE_RATE),
            round(self.hop_s * SAMPLE_RATE),
        )
        embedded = self._encoder.embed(cut)
        cosines = [float(one @ reference) for one in embedded if not isinstance(one, NodeError)]
        if not cosines:
            raise NodeError("no window of the clip has a voice print")
        third = max(1, len(cosines) // 3)
        drift = float(np.mean(cosines[-third:]) - np.mean(cosines[:third]))
        short: Value | NodeError = NodeError(f"{len(cosines)} window with a voice print; it takes two")
        several = len(cosines) > 1
        return Answer(
            {
                "mean": float(np.mean(cosines)),
                "std": float(np.std(cosines)) if several else short,
                "drift": drift if several else short,
            },
            {"cosines": cosines, "without_voice": len(cut) - len(cosines)},
        )


def windows(audio: np.ndarray, size: int, hop: int) -> list[np.ndarray]:
    """``audio`` ``[n]`` in windows of ``size`` samples, one every ``hop``; whole if it is shorter."""
    if len(audio) <= size:
        return [audio]
    return [audio[start : start + size] for start in range(0, len(audio) - size + 1, hop)]
