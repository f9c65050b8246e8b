"""Every shipped recipe on real speech, and the documentation beside the code."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import numpy as np
import pytest

from rewards.acoustics import measure
from rewards.catalogue import node_class, node_types
from rewards.graph import build_graph
from rewards.types import Clip
from rl.config import load_config, shipped_configs

RECIPES = sorted(path.stem for path in (shipped_configs() / "rewards").glob("*.yaml"))


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: str, speech: list[Clip], noise: np.ndarray) -> None:
    graph = build_graph(asdict(load_config("grpo_tiny", [f"rewards.recipe={recipe}"]).rewards))
    right = speech[0]
    wrong = replace(right, spoken=speech[1].spoken)
    silent = replace(right, audio=np.zeros_like(right.audio))
    broken = replace(right, audio=np.full_like(right.audio, np.nan))
    hiss = replace(right, audio=noise)
    scores = graph.score([right, wrong, silent, broken, hiss])
    assert scores.total[0] > scores.total[1] >= 0
    assert scores.total[0] > scores.total[4] >= 0
    assert scores.total[2] == 0
    assert scores.gated.tolist() == [False, False, True, False, False]
    np.testing.assert_array_equal(np.isnan(scores.total), [False, False, False, True, False])


def test_step_audio_formula(speech: list[Clip]) -> None:
    graph = build_graph(asdict(load_config("grpo_tiny", ["rewards.recipe=step_audio_3"]).rewards))
    scores = graph.score([speech[0], replace(speech[0], spoken="She gave him a small blue vase.")])
    error = scores.values["error"]
    assert error[0] == 0
    assert 0 < error[1] <= 0.5
    np.testing.assert_allclose(scores.total, np.exp(-3 * error))


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
            quieter(6.0, f"[soft] {speech[1].spoken}", speech[1].spoken),
        ]
    )
    score, error = scores.values["instruction"], scores.values["error"]
    np.testing.assert_allclose(score, [100, 100, 50, 0, 100, 100], atol=0.1)
    assert list(error[:4]) == [0, 0, 0, 0]
    assert 0 < error[4] <= 0.5 < error[5]
    np.testing.assert_array_equal(scores.total[:5], score[:5] / 100 * np.exp(-3 * error[:5]))
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
