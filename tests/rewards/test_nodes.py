"""Each node on real speech, and on what is known to fool its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soxr
from speechmos import dnsmos as reference_dnsmos

from rewards.audio import at_16k, at_level, level_dbfs
from rewards.catalogue import build_node
from rewards.node import Answer, Node, NodeError
from rewards.nodes.dnsmos import WINDOW, cut_windows
from rewards.types import Clip

RATE = 16000


def ready(**options: Any) -> Node:
    node = build_node(options, "rewards.nodes.x")
    node.load()
    return node


def value(row: Any, output: str = "") -> float:
    assert not isinstance(row, NodeError), row
    return float(row.values[output] if isinstance(row, Answer) else row)


def values(node: Node, clips: Sequence[Clip]) -> list[float]:
    return [value(row) for row in node.score(clips, {})]


def with_audio(clip: Clip, audio: np.ndarray) -> Clip:
    return replace(clip, audio=np.asarray(audio, np.float32))


def shuffled(audio: np.ndarray) -> np.ndarray:
    """Speech cut into 50 ms pieces in another order."""
    pieces = audio[: len(audio) // 800 * 800].reshape(-1, 800)
    return np.random.default_rng(0).permutation(pieces).ravel()


def noisy(audio: np.ndarray, snr_db: float) -> np.ndarray:
    noise = np.random.default_rng(0).standard_normal(len(audio))
    return audio + noise * np.sqrt(np.mean(audio**2)) * 10 ** (-snr_db / 20)


# --- audio helpers


def test_levels() -> None:
    tone = np.sin(np.arange(RATE) * 0.1).astype(np.float32)
    assert level_dbfs(tone) == pytest.approx(-3.01, abs=0.01)
    assert level_dbfs(at_level(0.001 * tone, -26)) == pytest.approx(-26, abs=0.01)
    assert np.abs(at_level(tone, 0)).max() == pytest.approx(1)
    assert level_dbfs(np.zeros(10)) == -np.inf
    with pytest.raises(NodeError, match="digital silence"):
        at_level(np.zeros(10, np.float32), -26)
    with pytest.raises(NodeError, match="no audio"):
        at_16k(np.zeros(0, np.float32), 44100)


# --- sanity


def test_sanity_passes_speech_at_any_rate(speech: list[Clip]) -> None:
    gate = ready(type="sanity")
    assert values(gate, speech) == [1.0] * len(speech)
    up = replace(speech[0], audio=soxr.resample(speech[0].audio, RATE, 44100), sample_rate=44100)
    assert values(gate, [up, with_audio(speech[0], 0.1 * speech[0].audio)]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("audio", "why"),
    [
        (np.zeros(0), "0.00 s is shorter than 0.3 s"),
        (np.ones(3200), "0.20 s is shorter than 0.3 s"),
        (np.zeros(RATE), "-inf dBFS is quieter than -50 dBFS"),
        (1e-4 * np.random.default_rng(0).standard_normal(RATE), "-80.0 dBFS is quieter"),
        (np.r_[np.ones(160), np.zeros(RATE)], "a voice in"),
    ],
)
def test_sanity_fails_what_no_model_should_judge(audio: np.ndarray, why: str) -> None:
    (row,) = ready(type="sanity").score([Clip(audio.astype(np.float32), RATE, "x", "x")], {})
    assert isinstance(row, Answer)
    assert row.values[""] == 0.0
    assert why in row.details["failed"]


def test_sanity_fails_speech_followed_by_a_long_silence(speech: list[Clip]) -> None:
    runaway = np.pad(speech[0].audio, (0, 30 * RATE))
    assert values(ready(type="sanity"), [with_audio(speech[0], runaway)]) == [0.0]


# --- duration, gate, error_rate


@pytest.mark.parametrize(
    ("seconds", "expected"), [(1.4, 1.0), (1.4 * 1.5, 1.0), (1.4 * 3, 0.5), (1.4 / 3, 0.5), (0.0, 0.0)]
)
def test_duration(seconds: float, expected: float) -> None:
    clip = Clip(np.zeros(round(seconds * RATE), np.float32), RATE, "x", "a" * 20)
    assert values(ready(type="duration"), [clip])[0] == pytest.approx(expected, abs=1e-3)


def test_duration_of_nothing(speech: list[Clip]) -> None:
    assert values(ready(type="duration"), speech) == [1.0] * len(speech)
    assert isinstance(ready(type="duration").score([replace(speech[0], spoken=" ")], {})[0], NodeError)


def test_gate_bounds_are_inside(speech: list[Clip]) -> None:
    gate = ready(type="gate", input="x", at_least=0.2, at_most=0.5)
    assert list(gate.score(speech, {"input": [0.1, 0.2, 0.3, 0.5, 0.5001]})) == [0, 1, 1, 1, 0]


def test_error_rate_of_a_transcript(speech: list[Clip]) -> None:
    node = ready(type="error_rate", of="x", unit="word")
    rows = node.score(
        [speech[0], speech[0], replace(speech[0], spoken="")], {"of": [speech[0].spoken, "", "x"]}
    )
    assert list(rows[:2]) == [0.0, 1.0]
    assert isinstance(rows[2], NodeError)


# --- dnsmos


def test_dnsmos_agrees_with_its_package(speech: list[Clip]) -> None:
    clip = with_audio(speech[0], at_level(speech[0].audio, -26.0))
    tiled = np.resize(clip.audio, WINDOW)
    theirs = reference_dnsmos.run(tiled, RATE)
    for scale in ("p808", "sig", "bak", "ovrl"):
        (row,) = ready(type="dnsmos", scale=scale).score([clip], {})
        assert isinstance(row, Answer)
        assert row.details["mos"] == pytest.approx(theirs[f"{scale}_mos"], abs=1e-3)
        assert value(row) == pytest.approx((row.details["mos"] - 1) / 4)


def test_dnsmos_ranks_clean_noisy_shuffled(speech: list[Clip]) -> None:
    node = ready(type="dnsmos")
    clean = np.mean(values(node, speech))
    light = np.mean(values(node, [with_audio(c, noisy(c.audio, 20)) for c in speech]))
    heavy = np.mean(values(node, [with_audio(c, noisy(c.audio, 5)) for c in speech]))
    mixed = np.mean(values(node, [with_audio(c, shuffled(c.audio)) for c in speech]))
    assert clean > light + 0.1 > heavy + 0.1
    assert clean > mixed + 0.2


def test_dnsmos_does_not_fall_with_the_level(speech: list[Clip]) -> None:
    loud, soft = values(ready(type="dnsmos"), [speech[0], with_audio(speech[0], 0.01 * speech[0].audio)])
    assert soft == pytest.approx(loud, abs=1e-3)


def test_dnsmos_on_lengths_of_all_kinds(speech: list[Clip], noise: np.ndarray) -> None:
    long = with_audio(speech[0], np.resize(speech[0].audio, 25 * RATE))
    clips = [speech[0], long, with_audio(speech[0], np.zeros(0)), with_audio(speech[0], np.zeros(RATE))]
    rows = ready(type="dnsmos", batch_size=2).score(clips, {})
    assert 0 < value(rows[0]) < 1
    assert value(rows[1]) == pytest.approx(value(rows[0]), abs=0.15)
    assert [str(row) for row in rows[2:]] == ["the clip holds no audio", "the clip is digital silence"]
    cuts = cut_windows(np.arange(25 * RATE))
    assert [len(cut) for cut in cuts] == [WINDOW] * 3
    assert (cuts[0][0], cuts[-1][-1]) == (0, 25 * RATE - 1)


# --- voiceprint


def test_voiceprint_knows_the_voice(speech: list[Clip], noise: np.ndarray) -> None:
    node = ready(type="voiceprint")
    same = values(node, speech)
    lower = [with_audio(c, soxr.resample(c.audio, 12000, RATE)) for c in speech]
    assert min(same) > max(values(node, lower)) + 0.05
    assert min(same) > values(node, [with_audio(speech[0], noise)])[0] + 0.1
    assert values(node, [with_audio(speech[0], speech[0].reference)]) == pytest.approx([1.0])


def test_voiceprint_of_short_and_empty_clips(speech: list[Clip]) -> None:
    clips = [
        with_audio(speech[0], speech[0].audio[4000:10000]),
        with_audio(speech[0], np.zeros(0)),
        with_audio(speech[0], np.zeros(RATE)),
        replace(speech[0], reference=None),
        replace(speech[0], reference=np.zeros(RATE, np.float32)),
        replace(speech[0], reference=np.full(RATE, np.nan, np.float32)),
    ]
    rows = ready(type="voiceprint").score(clips, {})
    assert 0.4 < value(rows[0]) < 1
    assert [str(row) for row in rows[1:]] == [
        "the clip holds no audio",
        "the clip is digital silence",
        "the prompt names no reference voice",
        "the reference voice can't be used: the clip is digital silence",
        "the reference voice can't be used: the audio isn't finite",
    ]


def test_voiceprint_takes_references_at_any_rate(speech: list[Clip]) -> None:
    node = ready(type="voiceprint")
    assert speech[0].reference is not None
    other = replace(
        speech[0], reference=soxr.resample(speech[0].reference, RATE, 44100), reference_rate=44100
    )
    first, second = values(node, [speech[0], other])
    assert second == pytest.approx(first, abs=0.01)
    assert values(node, [other, speech[0]]) == pytest.approx([second, first], abs=1e-5)


# --- pocketsphinx


def test_pocketsphinx_hears_the_words_in_any_order(speech: list[Clip]) -> None:
    node = ready(type="pocketsphinx")
    rows = [node.score([clip], {})[0] for clip in speech]
    back = [node.score([clip], {})[0] for clip in reversed(speech)][::-1]
    assert rows == back
    assert np.mean([value(row) for row in rows]) < 0.3
    wrong = [
        replace(clip, spoken=other.spoken)
        for clip, other in zip(speech, [*speech[1:], speech[0]], strict=True)
    ]
    assert np.mean([value(node.score([clip], {})[0]) for clip in wrong]) > 0.5


def test_pocketsphinx_hears_nothing_in_noise(speech: list[Clip], noise: np.ndarray) -> None:
    (row,) = ready(type="pocketsphinx").score([with_audio(speech[0], noise)], {})
    assert value(row) > 0.8
