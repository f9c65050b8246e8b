"""Audio as the reward models want it."""

from __future__ import annotations

import numpy as np
import soxr

from rewards.node import NodeError

SAMPLE_RATE = 16000
"""Of every model here, Hz."""


def at_16k(audio: np.ndarray, sample_rate: int) -> np.ndarray:
    """Mono float32 ``[n]`` at 16 kHz. Raises `NodeError` where there is no audio, or none that is finite."""
    if not np.isfinite(audio).all():
        raise NodeError("the audio isn't finite")
    if sample_rate != SAMPLE_RATE:
        audio = soxr.resample(np.asarray(audio, np.float32), sample_rate, SAMPLE_RATE)
    if len(audio) == 0:
        raise NodeError("the clip holds no audio")
    return np.asarray(audio, np.float32)


def level_dbfs(audio: np.ndarray) -> float:
    """Root mean square of ``audio`` ``[n]`` in dB of full scale; -inf for silence."""
    with np.errstate(divide="ignore"):
        return float(20 * np.log10(np.sqrt(np.mean(np.square(audio, dtype=np.float64)))))


def at_level(audio: np.ndarray, dbfs: float) -> np.ndarray:
    """``audio`` scaled to a root mean square of ``dbfs``, or less where its peaks would leave [-1, 1].

    Raises `NodeError` for digital silence.
    """
    level = level_dbfs(audio)
    if not np.isfinite(level):
        raise NodeError("the clip is digital silence")
    gain = min(10 ** ((dbfs - level) / 20), 1 / float(np.abs(audio).max()))
    return np.asarray(audio * gain, np.float32)
