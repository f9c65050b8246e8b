"""Two speakers of the embedded voice: right order, swapped voices, one voice for both, a dropped turn."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import soundfile

from rewards.graph import RewardGraph, build_graph
from rewards.types import Clip, Scores
from rl.prompts_file import load_prompts
from scripts.tiny.teacher import speak

RATE = 16000
FIRST, SECOND = "The old captain waited beside the lake.", "My brother found the wooden box."
CASES = ("right", "swapped", "one voice", "the other voice", "second dropped", "first dropped")


@pytest.fixture(scope="module")
def graph() -> RewardGraph:
    nodes = {
        "asr": {"type": "whisper", "words": True, "transcript": False},
        "vocal": {"type": "vocal_tags", "words": "asr.words"},
        "tags": {"type": "tag_confidence", "words": "asr.words", "vocal": "vocal.degree"},
    }
    return build_graph({"nodes": nodes, "total": "tags"})


@pytest.fixture(scope="module")
def dialogues() -> list[Clip]:
    """`CASES`, with the references of both speakers."""
    rng = np.random.default_rng(0)
    said = {(text, s): speak(text, s, None, rng)[0] for text in (FIRST, SECOND) for s in (0, 1)}
    voices = {
        name: soundfile.read(path, dtype="float32")
        for name, path in load_prompts("tiny:heldout")[0].meta["voices"].items()
    }
    pause = np.zeros(RATE * 3 // 20, np.float32)
    audios = [[said[FIRST, a], pause, said[SECOND, b]] for a, b in ((0, 1), (1, 0), (0, 0), (1, 1))]
    audios += [[said[FIRST, 0]], [said[SECOND, 1]]]
    text = f"<|speaker:0|>{FIRST}<|speaker:1|>{SECOND}"
    return [Clip(np.concatenate(parts), RATE, text, f"{FIRST} {SECOND}", voices=voices) for parts in audios]


@pytest.fixture(scope="module")
def scores(graph: RewardGraph, dialogues: list[Clip]) -> Scores:
    alone = [replace(clip, voices={}) for clip in dialogues]
    single = replace(dialogues[4], text=f"<|speaker:0|>[high] {FIRST}", spoken=FIRST)
    untagged = replace(single, text=FIRST)
    unnamed = replace(single, voices={})
    return graph.score([*dialogues, *alone, single, untagged, unnamed])


def test_the_tags_order_the_dialogues(scores: Scores) -> None:
    right, swapped, one, other, second, first = scores.total[:6]
    assert right > 0.75
    assert right > max(one, other) + 0.3
    assert min(one, other) > swapped > max(second, first)
    speaker = scores.values["tags.speaker"][:6]
    assert speaker[0] > 0.9
    assert max(speaker[1:]) < 0.2


def test_turns_have_their_own_voice(scores: Scores) -> None:
    turns = [scores.details[b]["tags"]["turns"] for b in range(6)]
    assert [name for name, _ in turns[0]] == ["0", "1"]
    heard = [[None if p is None else p > 0.5 for _, p in row] for row in turns]
    expected = [[True, True], [False, False], [True, False], [False, True], [True, None], [None, True]]
    assert heard == expected
    similarity = scores.values["tags.similarity"]
    assert similarity[0] > max(similarity[1:6]) + 0.1


def test_without_references_voices_must_differ(scores: Scores) -> None:
    right, swapped, one, other, second, first = scores.total[6:12]
    assert min(right, swapped) > 0.6  # swapped names are as good as right ones: nobody said who is who
    assert right > max(one, other) > max(second, first)
    assert scores.reasons[6]["tags.similarity"].startswith("the prompt names no reference voice")


def test_weights_by_hand(scores: Scores) -> None:
    logp = scores.values["asr.logp"]
    tokens = [p for *_, logps in json.loads(scores.details[12]["asr"]["words"]) for p in logps]
    assert len(tokens) == 7 + 1 + 1  # seven words, the full stop, the end
    assert np.mean(tokens) == pytest.approx(logp[12], abs=1e-3)
    assert scores.total[13] == pytest.approx(math.exp(logp[13]), abs=1e-3)
    tag, vocal = scores.values["tags.speaker"][12], max(scores.values["vocal.degree"][12], 0.01)
    mean = (9 * logp[12] + 4 * math.log(tag) + 2 * math.log(vocal)) / (9 + 4 + 2)
    assert scores.total[12] == pytest.approx(math.exp(mean), abs=1e-3)


def test_a_turn_alone_without_a_reference_is_missing(scores: Scores) -> None:
    assert np.isnan(scores.total[14])
    assert "no reference voice" in scores.reasons[14]["total"]
