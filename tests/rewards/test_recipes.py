"""Every shipped recipe on real speech, and the documentation beside the code."""

from __future__ import annotations

from dataclasses import asdict, fields, replace

import numpy as np
import pytest

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
