"""The benchmarks' own normalisers, and error rates as they count them."""

from __future__ import annotations

import string
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.catalogue import build_node
from rewards.node import NodeError
from rewards.text import BENCHMARKS, error_rate
from rewards.types import Clip


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("seed_tts", "Don't stop, Mr. Smith — it's 5 o'clock!", "don't stop mr smith  it's 5 o'clock"),
        ("seed_tts", "well-known “x” it’s", "wellknown x its"),
        ("seed_tts_zh", "你好，世界！OK", "你 好 世 界 O K"),
        ("seed_tts_zh", "他 说：《红楼梦》", "他 说 红 楼 梦"),
        ("long_tts", "It's 12 red-hot apples.", "it s twelve red hot apples"),
        ("long_tts", "In 1,200 BC", "in one two hundred bc"),
        ("long_tts", "x2y", "x two y"),
        ("long_tts_zh", "今天2号。App里", "今 天 2 号 app 里"),
    ],
)
def test_known_texts(name: str, text: str, expected: str) -> None:
    assert BENCHMARKS[name](text) == expected


@given(st.text(st.characters(codec="utf-8"), max_size=40), st.sampled_from(sorted(BENCHMARKS)))
def test_no_punctuation_of_the_keyboard_or_of_chinese_is_left(text: str, name: str) -> None:
    kept = "'" if name.startswith("seed") else ""
    left = set(BENCHMARKS[name](text)) & (set(string.punctuation) | set("，。！？；：“”《》、（）")) - set(
        kept
    )
    assert left == set()


@pytest.mark.parametrize(
    ("name", "reference", "heard", "expected"),
    [
        ("seed_tts", "The red box.", "the bed box", 1 / 3),
        ("seed_tts", "five boxes", "5 boxes", 1 / 2),  # numbers stay as they are
        ("seed_tts", "go", "go on and on", 3.0),  # not cut
        ("seed_tts_zh", "今天天气好。", "今天天七好", 1 / 5),
        ("seed_tts_zh", "OK吗", "ok吗", 2 / 3),  # case counts
        ("long_tts", "5 boxes", "five boxes", 0.0),
        ("long_tts_zh", "他有APP。", "他有app", 0.0),
    ],
)
def test_error_rates_by_hand(name: str, reference: str, heard: str, expected: float) -> None:
    assert error_rate(reference, heard, "word", name, cut=False) == pytest.approx(expected)


def error_node(**options: object):
    return build_node({"type": "error_rate", "of": "asr.text", "unit": "word", **options}, "rewards.nodes.x")


def test_the_lower_of_two_spellings_counts() -> None:
    clip = Clip(np.zeros(1, np.float32), 16000, "", "Room 12", meta={"text_norm": "Room number twelve"})
    node = error_node(also="text_norm", normalise="seed_tts", cut=False)
    assert node.score_clip(clip, of="room number twelve") == 0.0
    assert node.score_clip(clip, of="room 12") == 0.0
    assert node.score_clip(clip, of="room twelve") == pytest.approx(1 / 3)
    assert error_node(normalise="seed_tts").score_clip(clip, of="room number twelve") == 1.0


def test_a_text_of_marks_alone_has_no_rate() -> None:
    assert unicodedata.category("。") == "Po"
    with pytest.raises(NodeError, match="no text"):
        error_rate("……。", "x", "word", "seed_tts_zh")
