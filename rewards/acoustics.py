"""What can be measured of a voice without a model: pitch, level, voicing, and when it speaks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rewards.audio import SAMPLE_RATE
from rewards.node import NodeError

WINDOW, HOP = 640, 160
"""Of the frames, in samples: 40 ms every 10 ms."""

FLOOR = 10
"""Percentile of the frames' power that is taken for the noise floor."""

PITCH_RANGE = (65.0, 400.0)
"""Hz."""

VOICED = 0.8
"""Periodicity from which a frame counts as voiced; 1 is a perfectly periodic one. Ours, as is `ACTIVE_DB`."""

ACTIVE_DB = 30.0
"""A frame is speech if it is at most so far below the loud ones (the 95th percentile), in dB.

It must also be 3 dB above the noise floor, unless that masks the speech anyway.
"""

MASKED_DB = 14.0
"""Where the noise floor is nearer than this to the loud frames, it masks level and voicing.

Clean speech is 19 dB or more above its pauses, speech in noise at 4 dB or worse 10 or less.
"""


@dataclass(frozen=True)
class Measures:
    """Of one voice.

    ``seconds`` run from the first to the last speech; ``pitch`` is the median f0 in Hz, None with under 5
    voiced frames; ``level`` is the RMS of the speech in dB of full scale, ``voiced`` the share of it that is
    periodic, both None where noise masks them.
    """

    seconds: float
    pitch: float | None
    level: float | None
    voiced: float | None


def measure(audio: np.ndarray, floor: float | None = None) -> Measures:
    """The measures of mono 16 kHz ``audio`` ``[n]``. Raises `NodeError` for silence and under 60 ms.

    ``floor`` is the `noise_floor` of the recording that a part without pauses is cut from.
    """
    frames, power = frames_of(audio), frame_power(audio)
    floor = float(np.percentile(power, FLOOR)) if floor is None else floor
    loud = float(np.percentile(power, 95))
    if not loud > 0:
        raise NodeError("the clip is digital silence")
    masked = loud < floor * 10 ** (MASKED_DB / 10)
    active = power >= max(loud * 10 ** (-ACTIVE_DB / 10), 0.0 if masked else 2 * floor)
    periodicity, f0 = track_pitch(frames[active])
    voiced = periodicity >= VOICED
    span = np.flatnonzero(active)
    return Measures(
        seconds=float((span[-1] - span[0] + 1) * HOP / SAMPLE_RATE),
        pitch=float(np.median(f0[voiced])) if voiced.sum() >= 5 else None,
        level=None if masked else float(10 * np.log10(power[active].mean())),
        voiced=None if masked else float(voiced.mean()),
    )


def noise_floor(audio: np.ndarray) -> float:
    """Mean square of the quiet frames: the 10th percentile. Raises `NodeError` under 60 ms."""
    return float(np.percentile(frame_power(audio), FLOOR))


def frame_power(audio: np.ndarray) -> np.ndarray:
    """Mean square of each frame ``[frames]``."""
    return np.mean(np.square(frames_of(audio), dtype=np.float64), axis=1)


def frames_of(audio: np.ndarray) -> np.ndarray:
    """``[frames, 640]`` views of ``audio`` ``[n]``. Raises `NodeError` where there are fewer than three."""
    if len(audio) < WINDOW + 2 * HOP:
        raise NodeError("too short to measure")
    return np.lib.stride_tricks.sliding_window_view(audio, WINDOW)[::HOP]


def track_pitch(frames: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Periodicity (up to about 1) and f0 in Hz, ``[frames]`` each, of ``frames`` ``[frames, 640]``.

    The autocorrelation of the windowed frame over that of the window (Boersma, 1993), at its first peak that
    is nearly as high as the highest: a multiple of the period correlates as well as the period.
    """
    window = np.hanning(WINDOW)
    size = 2 * WINDOW
    centred = frames - frames.mean(axis=1, keepdims=True)

    def autocorrelation(x: np.ndarray) -> np.ndarray:
        return np.fft.irfft(np.abs(np.fft.rfft(x, size)) ** 2)[..., :WINDOW]

    found, weight = autocorrelation(centred * window), autocorrelation(window)
    low, high = (round(SAMPLE_RATE / f) for f in reversed(PITCH_RANGE))
    energy = np.maximum(found[:, :1], 1e-12)
    r = found[:, low - 1 : high + 2] / energy / (weight[low - 1 : high + 2] / weight[0])
    peak = (r[:, 1:-1] >= r[:, :-2]) & (r[:, 1:-1] >= r[:, 2:])
    heights = np.where(peak, r[:, 1:-1], 0.0)
    best = heights.max(axis=1)
    first = np.argmax(heights >= 0.95 * best[:, None], axis=1)
    return best, SAMPLE_RATE / (low + first)
