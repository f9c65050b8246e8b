"""Clips as files that servers take."""

from __future__ import annotations

import io

import numpy as np
import soundfile


def wav_bytes(audio: np.ndarray, sample_rate: int) -> bytes:
    """A WAV file of mono ``audio`` ``[n]`` in 16-bit PCM, exact for audio that was read from one."""
    file = io.BytesIO()
    pcm = np.clip(np.rint(audio * 32768), -32768, 32767).astype(np.int16)
    soundfile.write(file, pcm, sample_rate, subtype="PCM_16", format="WAV")
    return file.getvalue()
