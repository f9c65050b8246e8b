"""What can be measured of a clip and shouldn't decide its reward: length, level, pitch, pace, loops."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rewards.acoustics import measure
from rewards.audio import at_16k, level_dbfs
from rewards.node import NodeError
from rewards.nodes.repetition import repeated
from rewards.nodes.silence import BLOCK
from rewards.text import units
from rewards.types import Clip, Scores

MEASURES = {
    "duration": "seconds",
    "level": "RMS, dB of full scale",
    "silence": "share of 10 ms blocks 35 dB or more below the loudest",
    "pitch": "median F0, Hz",
    "voicing": "share of the speech that is periodic",
    "pace": "characters of the text per second of speech",
    "repetition": "share of the transcript's words that only repeat those before, beyond the text's own",
}
"""By name, what `measures_of` gives for each clip."""

_DEPTH = 35.0


def measures_of(clips: Iterable[Clip], scores: Scores) -> dict[str, np.ndarray]:
    """Each of `MEASURES` as float64 ``[N]``, NaN where it can't be had of a clip.

    ``repetition`` is read from the first transcript (the detail ``text``) that a node of ``scores`` keeps.
    """
    rows = [
        {**_acoustic(clip), "repetition": _repetition(clip, details)}
        for clip, details in zip(clips, scores.details, strict=True)
    ]
    return {name: np.array([row[name] for row in rows], np.float64) for name in MEASURES}


def _acoustic(clip: Clip) -> dict[str, float]:
    found = dict.fromkeys(("level", "silence", "pitch", "voicing", "pace"), np.nan)
    found["duration"] = len(clip.audio) / clip.sample_rate
    try:
        audio = at_16k(clip.audio, clip.sample_rate)
    except NodeError:
        return found
    level = level_dbfs(audio)
    if not np.isfinite(level):
        return {**found, "silence": 1.0}
    found |= {"level": level, "silence": silent_share(audio)}
    try:
        measured = measure(audio)
    except NodeError:
        return found
    found["pace"] = len(clip.spoken.strip()) / measured.seconds
    if measured.pitch is not None:
        found["pitch"] = measured.pitch
    if measured.voiced is not None:
        found["voicing"] = measured.voiced
    return found


def silent_share(audio: np.ndarray) -> float:
    """Share of the 10 ms blocks of 16 kHz ``audio`` ``[n]`` that are 35 dB or more below the loudest."""
    blocks = audio[: len(audio) // BLOCK * BLOCK].reshape(-1, BLOCK)
    if len(blocks) == 0:
        return np.nan
    power = np.mean(np.square(blocks, dtype=np.float64), axis=1)
    return float(np.mean(power <= power.max() * 10 ** (-_DEPTH / 10)))


def transcript_of(details: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What the first node that keeps a text heard; None where none does."""
    heard: Sequence[Any] = [kept["text"] for kept in details.values() if isinstance(kept.get("text"), str)]
    return heard[0] if heard else None


def _repetition(clip: Clip, details: Mapping[str, Mapping[str, Any]]) -> float:
    heard = transcript_of(details)
    if heard is None:
        return np.nan
    words, wanted = units(heard, "basic"), units(clip.spoken, "basic")
    return max(0, repeated(words) - repeated(wanted)) / len(words) if words else 0.0
