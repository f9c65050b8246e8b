"""Vocal tags, measured: on made signals whose changes are known, and on the embedded voice's styles."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import soundfile
import torch

from rewards.acoustics import measure
from rewards.catalogue import build_node
from rewards.node import Answer, NodeError
from rewards.nodes.attribute_judge import read_caption
from rewards.types import Clip
from rewards.words import Word, write_words
from rl.codec.loading import load_codec
from rl.codec.tiny import features, mel_filters, stack_hops
from rl.prompts_file import load_prompts
from scripts.tiny.sentences import sentences, written
from scripts.tiny.teacher import STYLES, degrade, speak

RATE = 16000


def buzz(period: int, dbfs: float = -20.0, seconds: float = 1.0) -> np.ndarray:
    """A voice with a period of so many samples, between two silences of 0.3 s."""
    times = np.arange(round(seconds * RATE))
    wave = sum(np.cos(2 * np.pi * h * times / period) / h for h in range(1, 12))
    wave *= 10 ** (dbfs / 20) / np.sqrt(np.mean(wave**2))
    return np.pad(wave, 4800).astype(np.float32)


def clip(text: str, audio: np.ndarray, spoken: str = "a" * 20, reference: np.ndarray | None = None) -> Clip:
    return Clip(audio, RATE, text, spoken, reference, None if reference is None else RATE)


def values(node: Any, clip: Clip, **inputs: str) -> dict[str, Any]:
    row = node.score_clip(clip, **inputs)
    assert isinstance(row, Answer)
    return dict(row.values)


# --- measures


def test_measures_of_a_made_voice() -> None:
    found = measure(buzz(160, -20.0))
    assert found.pitch == pytest.approx(100.0)
    assert found.level == pytest.approx(-20.0, abs=0.3)
    assert found.voiced is not None
    assert found.voiced > 0.95
    assert found.seconds == pytest.approx(1.0, abs=0.06)
    assert measure(buzz(80)).pitch == pytest.approx(200.0)


def test_noise_masks_level_and_voicing_but_is_no_speech() -> None:
    noise = np.random.default_rng(0).standard_normal(2 * RATE).astype(np.float32)
    assert measure(0.1 * noise).voiced is None
    voice = np.pad(buzz(100), 8000)
    hissing = measure(voice + 0.005 * np.resize(noise, len(voice)))
    assert hissing.level == pytest.approx(measure(voice).level, abs=0.1)
    assert hissing.seconds == pytest.approx(1.0, abs=0.06)
    assert measure(voice + 0.05 * np.resize(noise, len(voice))).level is None
    whisper = measure(np.pad(0.1 * noise, 8000))
    assert whisper.voiced is not None
    assert whisper.voiced < 0.05


@pytest.mark.parametrize(("samples", "why"), [(500, "too short"), (RATE, "digital silence")])
def test_what_cannot_be_measured(samples: int, why: str) -> None:
    with pytest.raises(NodeError, match=why):
        measure(np.zeros(samples, np.float32))


# --- the tags, by hand


@pytest.mark.parametrize(
    ("tag", "audio", "steps"),
    [
        ("high", buzz(128), 12 * math.log2(160 / 128) / 2),
        ("high", buzz(152), 12 * math.log2(160 / 152) / 2),
        ("low", buzz(128), -12 * math.log2(160 / 128) / 2),
        ("low", buzz(200), 12 * math.log2(200 / 160) / 2),
        ("loud", buzz(160, -18.5), 0.5),
        ("soft", buzz(160, -29.0), 3.0),
        ("whisper", buzz(160), 0.0),
    ],
)
def test_steps_of_a_whole_clip(tag: str, audio: np.ndarray, steps: float) -> None:
    node = build_node({"type": "vocal_tags", "words": "x"}, "x")
    row = node.score_clip(clip(f"[{tag}] {'a' * 20}", audio, reference=buzz(160)), words="[]")
    assert isinstance(row, Answer)
    assert row.details["tags"] == [{"tag": tag, "steps": pytest.approx(steps, abs=1e-3)}]
    degree = min(max(steps, 0.0), 1.0)
    performed = float(steps >= 1)
    assert dict(row.values) == pytest.approx(
        {"performed": performed, "missed": 1 - performed, "degree": degree}, abs=1e-3
    )


def test_the_rate_is_that_of_the_text() -> None:
    node = build_node({"type": "vocal_tags", "words": "x", "offset": 0.0, "per_character": 0.05}, "x")
    audio = buzz(160, seconds=1.0)
    seconds = measure(audio).seconds
    for characters in (10, 20, 40):
        given = clip("[fast] x", audio, "a" * characters, buzz(160))
        row = node.score_clip(given, words="[]")
        assert isinstance(row, Answer)
        expected = math.log(0.05 * characters / seconds) / math.log(1.17)
        assert row.details["tags"][0]["steps"] == pytest.approx(expected)


def test_a_span_is_compared_with_the_speakers_other_words() -> None:
    node = build_node({"type": "vocal_tags", "words": "x"}, "x")
    plain, high = buzz(160), buzz(128)
    audio = np.concatenate([plain, high, buzz(80)])
    words = [Word("one", 0.3, 1.3), Word("two", 1.9, 2.9), Word("three", 3.5, 4.5)]
    text = "<|speaker:0|>one [high] two<|speaker:1|>three"
    row = node.score_clip(clip(text, audio), words=write_words(words))
    assert isinstance(row, Answer)
    assert row.details["tags"][0]["steps"] == pytest.approx(12 * math.log2(160 / 128) / 2, abs=1e-3)
    unsaid = [words[0], words[2]]
    assert values(node, clip(text, audio), words=write_words(unsaid)) == {
        "performed": 0.0, "missed": 1.0, "degree": 0.0,
    }  # fmt: skip
    twice = "<|speaker:0|>one [high] two [slow] three"
    found = values(node, clip(twice, np.concatenate([plain, high, high])), words=write_words(words))
    assert (found["performed"], found["missed"], found["degree"]) == (0.5, 1.0, 0.5)


def test_without_tags_nothing_is_missed() -> None:
    node = build_node({"type": "vocal_tags", "words": "x"}, "x")
    found = values(node, clip("plain", buzz(160)), words="[]")
    assert found == {"performed": 1.0, "missed": 0.0, "degree": 1.0}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[laughs] a", r"\[laughs\] can't be measured"),
        ("[slow] a", "no reference voice"),
        ("a [slow]", "no words behind it"),
    ],
)
def test_tags_that_cannot_be_judged_are_missing(text: str, why: str) -> None:
    node = build_node({"type": "vocal_tags", "words": "x"}, "x")
    reference = buzz(160) if "laughs" in text else None
    with pytest.raises(NodeError, match=why):
        node.score_clip(clip(text, buzz(160), reference=reference), words="[]")


# --- caption and judge


def test_the_judge_reads_the_caption_back() -> None:
    captioner = build_node({"type": "acoustic_caption"}, "x")
    judge = build_node({"type": "attribute_judge", "caption": "x"}, "x")
    given = clip("[high] [soft] a", buzz(152, -23.5), reference=buzz(160))
    said = values(captioner, given)
    assert "pitch 105 Hz (+0.9 semitones)" in said["text"]
    assert "level -23.6 dBFS (-3.5 dB)" in said["text"]
    assert said["text"].startswith("A ")
    assert "soft" in said["text"].partition(":")[0]
    assert "high" not in said["text"].partition(":")[0]
    found = read_caption(said["text"])
    assert found.pitch == pytest.approx(said["pitch"], abs=0.05)
    assert found.rate == pytest.approx(said["rate"], abs=0.005)
    score = values(judge, given, caption=said["text"])
    assert score[""] == pytest.approx((100 * 0.9 / 2 + 100) / 2)
    assert score["performed"] == 0.0
    for text in ("[soft] a", "plain"):
        full = values(judge, replace(given, text=text), caption=said["text"])
        assert full == {"": 100.0, "performed": 1.0}


def test_what_the_judge_cannot_judge_is_missing() -> None:
    judge = build_node({"type": "attribute_judge", "caption": "x"}, "x")
    captioner = build_node({"type": "acoustic_caption"}, "x")
    given = clip("[high] a", buzz(160), reference=buzz(160))
    caption = values(captioner, given)["text"]
    with pytest.raises(NodeError, match="states no measured changes"):
        judge.score_clip(given, caption="A high voice, 80 of 100.")
    with pytest.raises(NodeError, match="governs part of the text"):
        judge.score_clip(replace(given, text="a [high] b"), caption=caption)
    with pytest.raises(NodeError, match="no reference voice"):
        captioner.score_clip(clip("a", buzz(160)))
    noise = (0.1 * np.random.default_rng(0).standard_normal(RATE)).astype(np.float32)
    said = values(captioner, replace(given, audio=noise))
    assert isinstance(said["voicing"], NodeError)
    assert read_caption(said["text"]).voicing is None


# --- the embedded voice


@pytest.fixture(scope="module")
def styled() -> list[tuple[str | None, Clip, Clip]]:
    """Style, the teacher's clip and the codec's resynthesis of it, for both speakers."""
    codec, filters = load_codec("tiny"), mel_filters()
    voices = {
        name: soundfile.read(path, dtype="float32")
        for name, path in load_prompts("tiny:heldout")[0].meta["voices"].items()
    }
    rng = np.random.default_rng(1)
    found = []
    for spoken in sentences(3, held_out=True, seed=7):
        for speaker in (0, 1):
            for style in (None, *STYLES):
                audio, f0 = speak(written(spoken), speaker, style, rng)
                frames = stack_hops(features(torch.from_numpy(audio), torch.from_numpy(f0), filters))
                again = codec.decode(codec.quantise(frames).numpy())
                text = f"<|speaker:{speaker}|>{spoken}"
                given = Clip(audio, RATE, text, spoken, voices=voices)
                found.append((style, given, replace(given, audio=again)))
    return found


@pytest.mark.parametrize("resynthesis", [False, True])
def test_known_styles_are_told_from_plain_speech(
    styled: list[tuple[str | None, Clip, Clip]], resynthesis: bool
) -> None:
    node = build_node({"type": "vocal_tags", "words": "x"}, "x")
    right = []
    for style, *clips in styled:
        given = clips[resynthesis]
        for tag in STYLES if style is None else (style,):
            tagged = replace(given, text=given.text.replace("|>", f"|>[{tag}] "))
            right.append(values(node, tagged, words="[]")["performed"] == (style is not None))
    assert np.mean(right) >= 0.9
    assert len(right) == 84


def test_noise_performs_neither_a_whisper_nor_a_level(styled: list[tuple[str | None, Clip, Clip]]) -> None:
    node = build_node({"type": "vocal_tags", "words": "x"}, "x")
    plain = next(given for style, given, _ in styled if style is None)
    noisy = degrade(plain.audio, 0.0, 0.4, np.random.default_rng(0))
    for tag in ("whisper", "loud", "soft"):
        tagged = replace(plain, audio=noisy, text=f"<|speaker:0|>[{tag}] {plain.spoken}")
        assert values(node, tagged, words="[]")["performed"] == 0.0
