"""Tagged texts, the confidence that weighs tags, and word times: known values and properties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.node import NodeError
from rewards.tags import (
    Instruction,
    Turn,
    confidences_of_heard,
    parse_target,
    spoken_words,
    tag_weighted_confidence,
)
from rewards.turns import turn_confidences
from rewards.words import Word, locate, match, read_words, write_words

TEXT = "Well. <|speaker:0|>[slow] Hello there [whisper][high] my friend<|speaker:12|> Yes? [laughs]"


def test_a_target_has_turns_and_instructions_at_their_words() -> None:
    target = parse_target(TEXT)
    assert target.words == ("Well.", "Hello", "there", "my", "friend", "Yes?")
    assert target.turns == (Turn(None, 0, 1), Turn("0", 1, 5), Turn("12", 5, 6))
    assert target.instructions == (
        Instruction("slow", 1, 3, "0"),
        Instruction("whisper", 3, 5, "0"),
        Instruction("high", 3, 5, "0"),
        Instruction("laughs", 6, 6, "12"),
    )


def test_a_turn_without_words_is_none() -> None:
    assert parse_target("<|speaker:0|><|speaker:1|>a<|speaker:0|>").turns == (Turn("1", 0, 1),)


@given(st.text(alphabet="ab <>|[]:01speakr", max_size=60))
def test_every_word_is_in_one_turn(text: str) -> None:
    target = parse_target(text)
    assert " ".join(target.words) == spoken_words(text)
    assert [i for turn in target.turns for i in range(turn.start, turn.stop)] == list(
        range(len(target.words))
    )
    for each in target.instructions:
        assert 0 <= each.start <= each.stop <= len(target.words)


def test_tokens_weigh_by_kind() -> None:
    tokens = [("text", math.log(0.9)), ("text", math.log(0.8)), ("speaker", math.log(0.5))]
    weights = {"text": 1.0, "speaker": 4.0, "vocal": 2.0}
    expected = (0.9 * 0.8 * 0.5**4) ** (1 / 6)
    assert tag_weighted_confidence(tokens, weights) == pytest.approx(expected)
    only_text = {"text": 1.0, "speaker": 0.0, "vocal": 0.0}
    assert tag_weighted_confidence(tokens, only_text) == pytest.approx(math.sqrt(0.72))
    with pytest.raises(NodeError, match="no token of the text has a weight"):
        tag_weighted_confidence([("vocal", -1.0)], only_text)


def test_an_asr_that_writes_tags() -> None:
    heard = [("<|spea", -0.1), ("ker:0|>", -0.3), ("He", -0.2), ("llo", -0.4), (" the", -0.5), ("re.", -0.7)]
    heard += [("<|speaker:0|>", -0.6), (" Yes", -0.8)]
    found = confidences_of_heard("<|speaker:0|>[slow] Hello there<|speaker:1|> Yes.", heard, 0.01)
    floor = math.log(0.01)
    assert [kind for kind, _ in found] == ["speaker", "vocal", "text", "text", "speaker", "text"]
    assert [p for _, p in found] == pytest.approx([-0.2, floor, -0.3, -0.6, floor, -0.8])


def test_a_word_isnt_taken_for_a_tag() -> None:
    found = confidences_of_heard("[high] go", [("high", -0.1), (" go", -0.2)], 0.1)
    assert found == [("vocal", math.log(0.1)), ("text", -0.2)]


@given(st.lists(st.sampled_from("abc"), max_size=8), st.lists(st.sampled_from("abc"), max_size=8))
def test_matches_keep_their_order(wanted: list[str], heard: list[str]) -> None:
    places = [place for place in match(wanted, heard) if place is not None]
    assert places == sorted(places)
    assert all(0 <= place < len(heard) for place in places)
    assert match(wanted, wanted) == list(range(len(wanted)))


def test_words_left_out_have_no_place_and_misheard_ones_do() -> None:
    assert match(["The", "red", "box."], ["the", "box"]) == [0, None, 1]
    assert match(["five", "o'clock"], ["5", "oclock"]) == [0, 1]
    words = [Word("go", 0.1, 0.25, (-0.5, -0.25)), Word("日本", 0.3, 1.0)]
    assert read_words(write_words(words)) == words
    assert locate(["Go!", "now", "日本"], [words[0], words[1]]) == [words[0], None, words[1]]


# --- whose turn


def angle(cosine: float) -> np.ndarray:
    """A unit vector with this cosine to [1, 0]."""
    return np.array([cosine, math.sqrt(1 - cosine**2)])


def confidences(speakers: str, turns: list[np.ndarray | None], **voices: np.ndarray) -> list[float | None]:
    return turn_confidences(
        speakers, turns, {name[1:]: v for name, v in voices.items()}, temperature=0.1, same_voice=0.8,
        other_voice=0.6,
    )  # fmt: skip


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_turns_against_references() -> None:
    a, b = angle(1.0), angle(0.5)
    right = confidences("01", [a, b], v0=a, v1=b)
    assert right == pytest.approx([sigmoid(5), sigmoid(5)])
    assert confidences("01", [b, a], v0=a, v1=b) == pytest.approx([sigmoid(-5)] * 2)
    assert confidences("01", [a, a], v0=a, v1=b) == pytest.approx([sigmoid(5), sigmoid(-5)])
    found = confidences("01", [a, None], v0=a, v1=b)
    assert found[1] is None
    assert found[0] == pytest.approx(sigmoid(5))
    assert confidences("0", [a], v0=a, v1=b) == pytest.approx([sigmoid(5)])
    assert confidences("0", [a], v0=a) == pytest.approx([sigmoid(4)])  # against other_voice


def test_turns_against_one_another() -> None:
    a, b = angle(1.0), angle(0.5)
    assert confidences("01", [a, b]) == pytest.approx([sigmoid(3)] * 2)  # same_voice against 0.5
    assert confidences("01", [a, a]) == pytest.approx([sigmoid(-2)] * 2)
    assert confidences("010", [a, b, a])[0] == pytest.approx(sigmoid(5))
    assert confidences("01", [a, None]) == [pytest.approx(sigmoid(2)), None]
    with pytest.raises(NodeError, match="one turn and no reference voice"):
        confidences("0", [a])
