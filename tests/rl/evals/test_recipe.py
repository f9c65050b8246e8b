"""Recipes of evaluations: those that ship, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.config import shipped_configs
from rl.errors import ConfigError
from rl.evals import SUITES
from rl.evals.recipe import build_pairs, load_recipe

RECIPES = sorted(path.stem for path in (shipped_configs() / "evals").glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_shipped_recipe_is_whole(name: str, caplog: pytest.LogCaptureFixture) -> None:
    recipe = load_recipe(name)
    assert recipe.figures
    pairs = build_pairs(recipe)
    assert pairs is not None
    assert pairs.components() == tuple(recipe.pairs)


def test_every_suite_has_one() -> None:
    assert set(SUITES) <= set(RECIPES)


def test_overrides_change_and_take_out() -> None:
    changed = ["nodes.asr.piece_s=20", "figures.SIM=null", "figures.half={value: error / 2, better: lower}"]
    recipe = load_recipe("seed_tts", [*changed, "pairs.quality=null"])
    assert recipe.nodes["asr"] == {"type": "whisper_text", "model": "tiny.en", "piece_s": 20}
    assert set(recipe.figures) == {"WER", "half"}
    assert recipe.figures["half"].better == "lower"
    assert build_pairs(recipe) is None


@pytest.mark.parametrize(
    ("override", "words"),
    [
        (
            "nodes.asr.modell=x",
            "seed_tts.yaml: nodes.asr.modell: a whisper_text node has no such option; did you mean model?",
        ),
        ("nodes.voice=null", "figures: there is no node voice"),
        ("figures.WER=errr", "figures: there is no node errr; did you mean error?"),
        ("figures.WER.better=down", "figures.WER.better: must be higher or lower or neither"),
        ("figures.WER.weigh=minutes", "figures.WER.weigh: must be items or words or tags"),
        ("figures.WER=3", "figures.WER: must be an expression, or a mapping with one as value, not 3"),
        ("figures=null", "figures must name at least one"),
        ("pairs.quality.by=silence", "pairs.quality: by: silence doesn't give one number"),
        ("metrics.a=1", "there is no key metrics; there are: nodes, figures, pairs"),
        ("nodes", "eval.nodes is not key=value"),
        ("nodes.x={", "no YAML value"),
    ],
)
def test_what_is_wrong_is_one_line(override: str, words: str) -> None:
    with pytest.raises(ConfigError) as error:
        build_pairs(load_recipe("seed_tts", [override]))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_recipe_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="no such evals file here or among the shipped ones; did you mean seed_tts"
    ):
        load_recipe("seed_ttss")
