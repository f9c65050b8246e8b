"""The teacher: hibari-tts' source-filter frames, bent into two speakers, styles and recording conditions.

hibari predicts, per 12.5 ms frame, an f0 and log-envelopes of a harmonic, a noise and a free-phase branch.
Bending those before synthesis makes other voices and styles whose f0 is known exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import soxr
from hibari import Hibari, dsp
from scipy.signal import fftconvolve

SAMPLE_RATE = 16_000
HOP = 200  # 12.5 ms: hibari's own frame at 16 kHz
HEAD_FRAMES, TAIL_FRAMES = 3, 5  # silence kept around the speech


@dataclass(frozen=True)
class Speaker:
    """f0 factor and spectral warp (formants scale by ``warp``) on hibari's voice."""

    f0: float
    warp: float


SPEAKERS = (Speaker(1.0, 1.0), Speaker(0.56, 0.84))
STYLES = ("slow", "fast", "high", "low", "loud", "soft", "whisper")
_SPEED = {"slow": 0.72, "fast": 1.35}
_F0 = {"high": 1.32, "low": 0.78}
_GAIN_DB = {"loud": 6.0, "soft": -9.0, "whisper": -6.0}
BASE_LEVEL = 0.06  # RMS


@lru_cache(maxsize=1)
def _hibari() -> Hibari:
    return Hibari()


def _warp(log_envelope: np.ndarray, factor: float) -> np.ndarray:
    if factor == 1.0:
        return log_envelope
    bins = log_envelope.shape[0]
    source = np.minimum(np.arange(bins) / factor, bins - 1)
    low = np.floor(source).astype(int)
    high = np.minimum(low + 1, bins - 1)
    weight = (source - low)[:, None].astype(np.float32)
    return log_envelope[low] * (1 - weight) + log_envelope[high] * weight


def speak(
    text: str, speaker: int, style: str | None, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """``text`` by ``speaker`` in ``style``.

    Returns mono float32 audio ``[n]`` at 16 kHz, n a multiple of the hop, and f0 ``[n / 200]`` in Hz
    (0 where unvoiced), silence trimmed.
    """
    tts, voice = _hibari(), SPEAKERS[speaker]
    speed = _SPEED.get(style or "", 1.0) * float(rng.uniform(0.95, 1.05))
    phonemes = "".join(tts.phonemize(text))
    out = tts.sess.run(
        None, {"ids": np.asarray([tts.ids(phonemes)], np.int64), "speed": np.asarray([speed], np.float32)}
    )
    harmonic, theta, noise, free, phi, f0 = (o[0] for o in out)
    f0 = f0.reshape(-1) * voice.f0 * _F0.get(style or "", 1.0)
    harmonic, theta = _warp(harmonic, voice.warp), _warp(theta, voice.warp)
    noise, free = _warp(noise, voice.warp), _warp(free, voice.warp)
    if style == "whisper":
        # the harmonic power, spread over a flat noise source; a pulse train of f0 has f0 of its power per Hz
        noise = np.logaddexp(2 * noise, 2 * (harmonic - 2.5)) / 2
        harmonic, f0 = harmonic - 20.0, np.zeros_like(f0)
    if voice.f0 != 1.0 or style in ("high", "low", "whisper"):
        free = free - 2.0  # its phases belong to the unbent f0
    audio = dsp.synth(harmonic, theta, noise, free, phi, f0, rng)
    audio = soxr.resample(audio, dsp.SR, SAMPLE_RATE).astype(np.float32)
    level = BASE_LEVEL * 10 ** (_GAIN_DB.get(style or "", 0.0) / 20)
    audio *= level / np.sqrt((audio**2).mean())
    frames = len(f0)
    audio = np.pad(audio, (0, max(0, frames * HOP - len(audio))))[: frames * HOP]
    f0 = np.where(f0 > 40.0, f0, 0.0).astype(np.float32)
    power = (audio.reshape(frames, HOP) ** 2).mean(1)
    loud = np.flatnonzero(power > 1e-3 * power.max())
    start, stop = max(0, loud[0] - HEAD_FRAMES), min(frames, loud[-1] + 1 + TAIL_FRAMES)
    return audio[start * HOP : stop * HOP], f0[start:stop]


def degrade(audio: np.ndarray, snr_db: float, rt60: float, rng: np.random.Generator) -> np.ndarray:
    """A bad recording of ``audio``: reverberant (``rt60`` seconds) with pink-ish noise at ``snr_db``."""
    taps = int(rt60 * SAMPLE_RATE)
    tail = rng.standard_normal(taps) * 10 ** (-3 * np.arange(taps) / taps)
    tail[: SAMPLE_RATE // 100] = 0
    tail *= 0.8 / np.sqrt((tail**2).sum())
    tail[0] = 1.0
    wet = fftconvolve(audio, tail)[: len(audio)]
    spectrum = np.fft.rfft(rng.standard_normal(len(audio)))
    hiss = np.fft.irfft(spectrum / np.sqrt(np.arange(len(spectrum)) + 40.0), len(audio))
    hiss *= np.sqrt((wet**2).mean() / (hiss**2).mean()) * 10 ** (-snr_db / 20)
    return (wet + hiss).astype(np.float32)
