"""Nodes for long clips: a transcript piece by piece, and a voice window by window."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from resemblyzer import VoiceEncoder

from rewards.audio import at_level
from rewards.benchmark_text import seed_tts
from rewards.catalogue import build_node
from rewards.node import NodeError
from rewards.nodes.voice_drift import windows
from rewards.nodes.voiceprint import LEVEL
from rewards.types import Clip
from rl.errors import ConfigError

RATE = 16000


def padded(clip: Clip, seconds: int) -> np.ndarray:
    return np.pad(clip.audio, (0, seconds * RATE - len(clip.audio)))


def test_a_long_clip_is_heard_in_pieces(speech: list[Clip]) -> None:
    node = build_node({"type": "whisper_text", "piece_s": 4}, "x")
    node.load()
    joined = np.concatenate([padded(speech[0], 4), padded(speech[1], 4), speech[2].audio])
    nothing = replace(speech[0], audio=np.zeros(0, np.float32))
    broken = replace(speech[0], audio=np.full(9, np.nan, np.float32))
    long, alone, empty, missing = node.score(
        [replace(speech[0], audio=joined), speech[0], nothing, broken], {}
    )
    assert seed_tts(alone.values["text"]) == "she gave him a small red box"
    expected = "she gave him a small red box please open the window before you leave"
    assert seed_tts(long.values["text"]).startswith(expected)
    assert empty.values["text"] == ""
    assert isinstance(missing, NodeError)
    with pytest.raises(ConfigError, match="neither a file or folder here nor one of"):
        build_node({"type": "whisper_text", "model": "whisper-9"}, "x")


def test_windows() -> None:
    audio = np.arange(10, dtype=np.float32)
    assert [w.tolist() for w in windows(audio, 4, 3)] == [[0, 1, 2, 3], [3, 4, 5, 6], [6, 7, 8, 9]]
    assert [w.tolist() for w in windows(audio[:9], 4, 3)] == [[0, 1, 2, 3], [3, 4, 5, 6]]  # no partial one
    assert [w.tolist() for w in windows(audio[:3], 4, 3)] == [[0, 1, 2]]


def test_drift_by_hand(speech: list[Clip]) -> None:
    """Resemblyzer's own embedding of each window, and the arithmetic written out."""
    low = np.interp(np.arange(0, len(speech[1].audio), 0.7), np.arange(len(speech[1].audio)), speech[1].audio)
    audio = np.concatenate([speech[2].audio, low.astype(np.float32)])[: 7 * RATE]  # another voice behind
    clip = replace(speech[0], audio=audio)
    node = build_node({"type": "voice_drift", "window_s": 2.0, "hop_s": 1.0}, "x")
    node.load()
    (row,) = node.score([clip], {})

    encoder = VoiceEncoder("cpu", verbose=False)

    def embed(wav: np.ndarray) -> np.ndarray:
        return encoder.embed_utterance(at_level(wav, LEVEL))

    reference = embed(clip.reference)
    count = (len(audio) - 2 * RATE) // RATE + 1
    cosines = [float(embed(audio[i * RATE : (i + 2) * RATE]) @ reference) for i in range(count)]
    mean = sum(cosines) / count
    assert count >= 3
    assert row.details["cosines"] == pytest.approx(cosines, abs=1e-4)
    assert row.values["mean"] == pytest.approx(mean, abs=1e-4)
    assert row.values["std"] == pytest.approx(
        (sum((c - mean) ** 2 for c in cosines) / count) ** 0.5, abs=1e-4
    )
    third = count // 3
    drift = sum(cosines[-third:]) / third - sum(cosines[:third]) / third
    assert row.values["drift"] == pytest.approx(drift, abs=1e-4)
    assert drift < -0.05


def test_what_has_no_drift(speech: list[Clip]) -> None:
    node = build_node({"type": "voice_drift"}, "x")
    node.load()
    short = replace(speech[0], audio=speech[0].audio[: 2 * RATE])
    rows = node.score(
        [short, replace(short, reference=None), replace(short, audio=np.zeros(4 * RATE, np.float32))], {}
    )
    assert rows[0].values["mean"] > 0.6
    assert isinstance(rows[0].values["std"], NodeError)
    assert isinstance(rows[0].values["drift"], NodeError)
    assert "no reference voice" in str(rows[1])
    assert "no window of the clip has a voice print" in str(rows[2])
