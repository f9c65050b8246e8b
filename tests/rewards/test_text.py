"""Error rates: known values, and the traps of transcripts."""

from __future__ import annotations

import jiwer
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.node import NodeError
from rewards.text import NORMALISERS, error_rate, units


@pytest.mark.parametrize(
    ("reference", "hypothesis", "unit", "expected"),
    [
        ("the red box", "the red box", "char", 0.0),
        ("The red box.", "the RED box", "char", 0.0),
        ("the red box", "the bed box", "char", 1 / 11),
        ("the red box", "the bed box", "word", 1 / 3),
        ("the red box", "", "char", 1.0),
        ("the red box", "", "word", 1.0),
        ("one two three", "1-2-3", "char", 0.0),
        ("one two three", "1, 2, 3.", "char", 0.0),
        ("one two three boxes", "1 2 3 boxes", "word", 0.0),
        ("half past seven thirty", "half past 7:30", "char", 0.0),
        ("room 5, 12 people", "room 5 12 people", "char", 0.0),
        ("Wait...", "wait", "char", 0.0),
        ("three point five kilos", "3.5 kilos.", "word", 0.0),
        ("twenty five boxes", "25 boxes", "word", 0.0),
        ("don't go", "do not go", "word", 0.0),
        ("hi", "hi hi hi hi hi hi hi hi hi hi", "char", 1.0),
    ],
)
def test_known_values(reference: str, hypothesis: str, unit: str, expected: float) -> None:
    assert error_rate(reference, hypothesis, unit, "english") == pytest.approx(expected)


def test_other_languages_keep_their_words() -> None:
    assert error_rate("Grüße, Welt!", "grüße welt", "char", "basic") == 0.0
    assert error_rate("Welt", "welt", "char", "none") == 0.25


@pytest.mark.parametrize(
    ("reference", "hypothesis", "unit", "expected"),
    [
        ("今天天气很好。", "今天 天气 很好", "char", 0.0),
        ("今天天气很好", "今天天气真好", "char", 1 / 6),
        ("ＡＢＣ１２３", "abc 123", "char", 1 / 6),
        ("ＡＢＣ１２３。", "abc123", "word", 0.0),
        ("ｶﾒﾗ、です！", "カメラです", "char", 0.0),
        ("我用 Python 写代码", "我用python写代码", "char", 0.0),
        ("我用 Python 写代码", "我用java写代码", "word", 1 / 6),
        ("你好", "", "char", 1.0),
        ("hello world", "hello word", "char", 1 / 11),
    ],
)
def test_chinese_and_japanese(reference: str, hypothesis: str, unit: str, expected: float) -> None:
    assert error_rate(reference, hypothesis, unit, "cjk") == pytest.approx(expected)


def test_units_are_words_or_single_characters() -> None:
    assert units("今天 Go on, ２つ", "cjk") == ["今", "天", "go", "on", "2", "つ"]


@pytest.mark.parametrize("empty", ["", "  ", "...", "[laughs]"])
def test_an_empty_reference_is_no_score(empty: str) -> None:
    with pytest.raises(NodeError, match="no text to compare with"):
        error_rate(empty, "two words", "word", "english")


@settings(max_examples=50, deadline=None)
@given(
    st.text(max_size=30),
    st.text(max_size=60),
    st.sampled_from(["char", "word"]),
    st.sampled_from(NORMALISERS),
)
def test_always_between_0_and_1(reference: str, hypothesis: str, unit: str, normaliser: str) -> None:
    try:
        rate = error_rate(reference, hypothesis, unit, normaliser)
    except NodeError:
        return
    assert 0 <= rate <= 1


def test_the_cut_is_needed() -> None:
    assert jiwer.cer("hi", "hi hi hi") > 1
