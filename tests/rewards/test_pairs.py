"""Nodes that compare two clips."""

from __future__ import annotations

import base64
import io
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from rewards.catalogue import build_node
from rewards.endpoints.families import shared_bias
from rewards.node import NodeError
from rewards.types import Clip
from rl.errors import ConfigError

RATE = 16000


def seconds(length: float, rival: float | None) -> Clip:
    """50 characters, for which `duration` expects 3.2 s with a slack of 1.5."""
    audio = np.zeros(round(length * RATE), np.float32)
    other = None if rival is None else (np.zeros(round(rival * 2 * RATE), np.float32), 2 * RATE)
    return Clip(audio, RATE, "x" * 50, "x" * 50, rival=other)


def test_the_higher_score_is_preferred() -> None:
    node = build_node({"type": "pair_score", "by": "duration", "margin": 0.05}, "x")
    node.load()
    # 3.2 s scores 1, 1.6 s 1.5 * 0.5 = 0.75, 1.55 s 0.7266, 0 s 0
    pairs = [(3.2, 1.6), (1.6, 3.2), (3.2, 3.2), (1.6, 1.55), (1.6, 0.0)]
    assert node.score([seconds(*pair) for pair in pairs], {}) == [1.0, 0.0, 0.5, 0.5, 1.0]
    (alone, beside) = node.score([seconds(3.2, None), seconds(3.2, 1.6)], {})
    assert isinstance(alone, NodeError)
    assert beside == 1.0
    wordless = replace(seconds(3.2, 1.6), spoken="")
    assert "no text to expect a duration from" in str(node.score([wordless], {})[0])


def test_a_scorer_gives_one_number_alone() -> None:
    with pytest.raises(ConfigError, match="silence doesn't give one number"):
        build_node({"type": "pair_score", "by": "silence"}, "x")
    with pytest.raises(ConfigError, match=r"by\.of: must be set"):
        build_node({"type": "pair_score", "by": "error_rate"}, "x")


@pytest.fixture
def judge(loopback: Any, tmp_path: Path) -> Any:
    options = {"base_url": loopback.base_url, "model": "m", "cache": str(tmp_path / "cache"), "retries": 0}
    return build_node({"type": "pair_endpoint", **options}, "x")


def tone(step: float, rate: int = RATE) -> np.ndarray:
    return np.round(np.sin(np.arange(rate // 4) * step) * 3000).astype(np.float32) / 32768


def test_a_judge_hears_both_in_their_order(loopback: Any, judge: Any) -> None:
    loopback.reply = lambda asked: loopback.chat('{"reason": "", "better": "second"}')
    clip = Clip(
        tone(0.1), RATE, "[slow] <b>Hi", "Hi", meta={"instruction": "slowly"}, rival=(tone(0.2), RATE)
    )
    (row, alone) = judge.score([clip, replace(clip, rival=None)], {})
    assert row.values == {"": 0.0}
    assert row.details["model"] == "served-1"
    assert isinstance(alone, NodeError)
    (asked,) = loopback.asked
    system, user = asked.body["messages"]
    assert system["role"] == "system"
    data, first, second = user["content"]
    assert "<" not in data["text"]
    assert json.loads(data["text"]) == {"instruction": "slowly", "text": "[slow] <b>Hi"}
    for part, audio in ((first, clip.audio), (second, clip.rival[0])):
        wav = io.BytesIO(base64.b64decode(part["input_audio"]["data"]))
        np.testing.assert_array_equal(soundfile.read(wav, dtype="float32")[0], audio)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"reason": "", "better": "first"}', 1.0),
        ('```json\n{"better": "tie"}\n```', 0.5),
        ("first", "isn't valid JSON"),
        ('{"better": "First"}', "doesn't say first, second or tie"),
        ('{"better": 1}', "doesn't say"),
        ('["first"]', "doesn't say"),
        ('{"better": "first", "better": "second"}', "isn't valid JSON"),
    ],
)
def test_answers_are_not_guessed(loopback: Any, judge: Any, answer: str, expected: Any) -> None:
    loopback.reply = lambda asked: loopback.chat(answer)
    (row,) = judge.score([Clip(tone(0.1), RATE, "Hi", "Hi", rival=(tone(0.2), RATE))], {})
    if isinstance(expected, float):
        assert row.values[""] == expected
    else:
        assert expected in str(row.values[""])
    assert row.details["answer"] == answer


def test_a_judge_of_the_policys_family_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    node = build_node(
        {"type": "pair_endpoint", "base_url": "http://localhost/v1", "model": "Qwen3-Omni"}, "x"
    )
    (warning,) = shared_bias({"better": node}, ["qwen3"])
    assert warning.startswith("better (Qwen3-Omni) and the policy are both of the family qwen")
