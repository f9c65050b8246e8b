"""Speech to score: a real text-to-speech voice, synthesised once per session."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import soxr
from hibari import Hibari

from rewards.types import Clip

RATE = 16000
SENTENCES = (
    "She gave him a small red box.",
    "Please open the window before you leave.",
    "The children played in the garden all day.",
    "We saw a bright light over the hill.",
    "Nobody knew where the captain had gone.",
)


@pytest.fixture(scope="session")
def speech() -> list[Clip]:
    """Five clean sentences of one voice, with another sentence of that voice as the reference."""
    tts = Hibari()

    def say(text: str, seed: int) -> np.ndarray:
        return soxr.resample(tts(text, seed=seed), tts.sample_rate, RATE).astype(np.float32)

    reference = say("My brother reads a book every evening.", 99)
    return [
        Clip(say(text, seed), RATE, text, text, reference=reference, reference_rate=RATE)
        for seed, text in enumerate(SENTENCES)
    ]


@pytest.fixture(scope="session")
def noise() -> np.ndarray:
    """Two seconds of white noise at -20 dBFS, float32."""
    return (0.1 * np.random.default_rng(0).standard_normal(2 * RATE)).astype(np.float32)


@pytest.fixture(scope="session")
def docs() -> str:
    return (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")
