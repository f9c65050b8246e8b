"""Every shipped recipe on real speech, and the documentation beside the code."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
import pytest

from rewards.acoustics import measure
from rewards.catalogue import node_class, node_types
from rewards.graph import RewardGraph, build_graph
from rewards.types import Clip
from rl.config import load_config, shipped_configs

RECIPES = sorted(path.stem for path in (shipped_configs() / "rewards").glob("*.yaml"))


def recipe_graph(recipe: str, loopback: Any) -> RewardGraph:
    """A shipped recipe, its endpoints on the loopback server and without a cache."""
    config = asdict(load_config("grpo_tiny", [f"rewards.recipe={recipe}"]).rewards)
    for node in config["nodes"].values():
        if node is not None and "base_url" in node:
            node |= {"base_url": loopback.base_url, "cache": None}
    return build_graph(config)


def heard(loopback: Any, *tokens: tuple[str, float]) -> Any:
    """A transcription with the probabilities of its tokens."""
    rows = [{"token": token, "logprob": math.log(p)} for token, p in tokens]
    return loopback.json({"text": "".join(token for token, _ in tokens).strip(), "logprobs": rows})


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str, speech: list[Clip], noise: np.ndarray, loopback: Any) -> None:
    transcript = heard(loopback, *((f"{word} ", 0.9) for word in speech[0].spoken.split()))
    verdict = loopback.chat('{"reason": "", "score": 80}')
    loopback.reply = lambda asked: transcript if "audio" in asked.path else verdict
    graph = recipe_graph(recipe, loopback)
    right = speech[0]
    wrong = replace(right, text=speech[1].text, spoken=speech[1].spoken)
    silent = replace(right, audio=np.zeros_like(right.audio))
    broken = replace(right, audio=np.full_like(right.audio, np.nan))
    hiss = replace(right, audio=noise)
    scores = graph.score([right, wrong, silent, broken, hiss])
    assert scores.total[0] > scores.total[1] >= 0
    assert scores.total[0] > scores.total[4] >= 0
    assert scores.total[2] == 0
    assert scores.gated.tolist() == [False, False, True, False, False]
    np.testing.assert_array_equal(np.isnan(scores.total), [False, False, False, True, False])


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_can_stand_beside_the_quickstarts_monitors(recipe: str) -> None:
    config = load_config("grpo_tiny", [f"rewards={recipe}"])
    graph = build_graph(asdict(config.rewards), config.evaluation.monitors)
    assert {"heard.loops", "cer", "outside"} <= set(graph.output_names)


def test_step_audio_total_by_hand(speech: list[Clip], loopback: Any) -> None:
    """Whisper hears "she gave him a small red box": 28 characters."""
    grades = {"seed 0": 70, "seed 1": 80, "seed 2": 90, "seed 3": 96}  # mean 84

    def reply(asked: Any) -> Any:
        if asked.body["model"].startswith("mistralai"):
            return loopback.chat(f"seed {asked.body['seed']}")
        shown = json.loads(asked.body["messages"][1]["content"])
        assert shown["instruction"] == "Speak calmly."
        return loopback.chat(json.dumps({"reason": "", "score": grades[shown["caption"]]}))

    loopback.reply = reply
    meta = {"instruction": "Speak calmly."}
    spoken = [speech[0].spoken, "She gave him a small red", "She gave him a", "She gave him a small"]
    clips = [replace(speech[0], spoken=text, meta=meta) for text in spoken]
    scores = recipe_graph("step_audio_3", loopback).score(clips)
    np.testing.assert_array_equal(scores.values["instruction"], 84.0)
    error = np.array([0, 4 / 24, 14 / 14, 8 / 20])
    np.testing.assert_array_equal(scores.values["error"], error)
    expected = np.where(error <= 0.5, 0.84 * np.exp(-3 * error), 0)
    np.testing.assert_allclose(scores.total, expected, rtol=1e-15)
    assert len(loopback.asked) == 4 * (4 + 4)


def test_fish_total_by_hand(speech: list[Clip], loopback: Any) -> None:
    transcript = heard(
        loopback, ("<|speaker:0|>", 0.9), ("[slow]", 0.8), (" She gave", 0.5), (" him a small red box.", 0.7)
    )
    loopback.reply = lambda asked: transcript
    texts = ["<|speaker:0|>[slow] She gave him a small red box.", "<|speaker:0|>[loud] She gave him"]
    clips = [replace(speech[0], text=text) for text in texts]
    scores = recipe_graph("fish_s2", loopback).score(clips)
    # weights: speaker 4, vocal 2, each word 1; what isn't heard has 0.01
    right = (0.9**4 * 0.8**2 * 0.5**2 * 0.7**5) ** (1 / 13)
    wrong = (0.9**4 * 0.01**2 * 0.5**2 * 0.7) ** (1 / 9) - 0.2 * 1
    rest = scores.values["quality"] + scores.values["voice"]
    np.testing.assert_allclose(scores.total - rest, [right, wrong], rtol=1e-12)


def test_step_audio_formula_with_the_embedded_judge(speech: list[Clip]) -> None:
    graph = build_graph(asdict(load_config("grpo_tiny", ["rewards=step_audio_3_embedded"]).rewards))
    plain = speech[0]
    assert plain.reference is not None
    level = measure(plain.audio).level
    usual = measure(plain.reference).level
    assert level is not None
    assert usual is not None

    def quieter(db: float, text: str, spoken: str) -> Clip:
        """The clip at ``db`` below the reference voice."""
        audio = plain.audio * 10 ** ((usual - level - db) / 20)
        return replace(plain, audio=audio.astype(np.float32), text=text, spoken=spoken)

    said = plain.spoken
    scores = graph.score(
        [
            plain,
            quieter(6.0, f"[soft] {said}", said),
            quieter(1.5, f"[soft] {said}", said),
            quieter(-6.0, f"[soft] {said}", said),
            quieter(6.0, "[soft] She gave him a small blue vase.", "She gave him a small blue vase."),
            quieter(6.0, "[soft] Oh.", "Oh."),
        ]
    )
    score, error = scores.values["instruction"], scores.values["error"]
    np.testing.assert_allclose(score, [100, 100, 50, 0, 100, 100], atol=0.1)
    assert list(error[:4]) == [0, 0, 0, 0]
    assert 0 < error[4] <= 0.9 < error[5]
    np.testing.assert_array_equal(scores.total[:5], score[:5] / 100 * np.exp(-error[:5]))
    assert scores.total[5] == 0.0


def test_fish_total_with_tags(speech: list[Clip]) -> None:
    graph = build_graph(asdict(load_config("grpo_tiny", ["rewards=fish_s2_embedded"]).rewards))
    missed = replace(speech[0], text=f"<|speaker:0|>[whisper] {speech[0].spoken}")
    scores = graph.score([speech[0], missed])
    value = scores.values
    assert list(value["vocal.missed"]) == [0.0, 1.0]
    expected = value["tags"] - 0.2 * value["vocal.missed"] + value["quality"] + value["voice"]
    np.testing.assert_allclose(scores.total, expected)
    assert scores.total[0] > scores.total[1] + 0.2


def test_the_total_can_be_overridden_alone(speech: list[Clip]) -> None:
    graph = build_graph(asdict(load_config("grpo_tiny", ["rewards.total='quality'"]).rewards))
    scores = graph.score(speech[:1])
    assert graph.components() == ("quality",)
    assert scores.total[0] == scores.values["quality"][0]
    assert np.isfinite(scores.values["voice"][0])


@pytest.mark.parametrize("kind", node_types())
def test_every_node_and_option_is_documented(kind: str, docs: str) -> None:
    section = docs.partition(f"### `{kind}`")[2].partition("\n### ")[0]
    node = node_class(kind, "type")
    assert node.__doc__
    assert section, kind
    for f in fields(node):
        if f.init:
            assert f"`{f.name}`" in section
            assert f.metadata["help"]
