"""What servers hear is what is stored."""

from __future__ import annotations

import io

import numpy as np
import soundfile

from rewards.endpoints.wav import wav_bytes
from rollouts.store import quantise


def test_wav_is_exact_for_stored_audio() -> None:
    audio = quantise(np.random.default_rng(0).uniform(-1.2, 1.2, 1000).astype(np.float32))
    read, rate = soundfile.read(io.BytesIO(wav_bytes(audio, 44100)), dtype="float32")
    assert rate == 44100
    np.testing.assert_array_equal(read, audio)
