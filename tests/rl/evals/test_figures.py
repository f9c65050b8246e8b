"""Lines, changes and preferences by hand, on scores that are made up."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rewards.types import Clip, ClipScore, Scores
from rl.evals.figures import differences, lines, values_of
from rl.evals.pairs import judge_pairs
from rl.evals.recipe import Recipe, build_pairs, load_recipe
from rollouts.types import Prompt

RATE = 16000
PROMPTS = [
    Prompt("a_x", "[slow] one two", "one two", meta={"kind": "x", "item": "a"}),
    Prompt("a_y", "[slow] [high] one two three four", "one two three four", meta={"kind": "y", "item": "a"}),
    Prompt("b_x", "[low] one two", "one two", meta={"kind": "x", "item": "b"}),
]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    file = tmp_path / "r.yaml"
    file.write_text(
        "nodes:\n  length: {type: duration}\n"
        "figures:\n  plain: length\n  words: {value: 2*length, weigh: words}\n"
        "  tags: {value: length, weigh: tags, better: lower}\n  log: log(length)\n"
    )
    return load_recipe(str(file))


def scores(*values: float) -> Scores:
    rows = [
        ClipScore({"length": value}, value, {"length": "no text"} if math.isnan(value) else {}, {}, False)
        for value in values
    ]
    return Scores.of(rows, ["length"])


def test_means_weights_kinds_and_missing_by_hand(recipe: Recipe) -> None:
    found = scores(0.5, math.nan, 0.0)
    values = values_of(recipe, found)
    by = {(line.name, line.kind): line for line in lines(recipe, PROMPTS, found, values)}
    assert len(by) == 4 * 3
    assert by["plain", "all"].estimate.mean == 0.25
    assert by["plain", "all"].estimate.values == 2
    assert by["plain", "all"].missing == {"no text": 1}
    assert by["plain", "x"].missing == {}
    assert math.isnan(by["plain", "y"].estimate.mean)  # missing is not 0
    assert by["log", "all"].missing == {"no text": 1, "no finite number": 1}
    assert by["log", "all"].estimate.mean == pytest.approx(math.log(0.5))

    found = scores(0.5, 0.25, 0.0)
    values = values_of(recipe, found)
    by = {(line.name, line.kind): line for line in lines(recipe, PROMPTS, found, values)}
    assert by["words", "all"].estimate.mean == pytest.approx((2 * 1.0 + 4 * 0.5 + 2 * 0.0) / 8)
    assert by["tags", "all"].estimate.mean == pytest.approx((1 * 0.5 + 2 * 0.25 + 1 * 0.0) / 4)
    assert by["plain", "all"].estimate.prompts == 2  # both kinds of an item are resampled together


def test_changes_are_over_what_both_have(recipe: Recipe) -> None:
    own, other = (values_of(recipe, scores(*row)) for row in ((0.5, 0.5, 1.0), (0.25, math.nan, 0.5)))
    by = {(one.name, one.kind): one.comparison for one in differences(recipe, PROMPTS, own, other)}
    assert (by["plain", "all"].before, by["plain", "all"].after) == (0.375, 0.75)
    assert by["plain", "all"].delta == 0.375
    assert (by["plain", "all"].pairs, by["plain", "all"].missing) == (2, 1)


JUDGE = """
from dataclasses import dataclass
from rewards.node import Node, NodeError, option

@dataclass
class Judge(Node):
    favours: str = option("loud", "", choices=("loud", "first"))

    def score_clip(self, clip):
        own, other = abs(clip.audio).max(), abs(clip.rival[0]).max()
        if self.favours == "first":
            return 1.0
        if own > 0.95:
            raise NodeError("too loud to hear")
        return 0.5 if own == other else float(own > other)
"""


def tone(level: float) -> Clip:
    return Clip(np.full(100, level, np.float32), RATE, "", "")


def test_win_rates_by_hand(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "judges_of_a_test").mkdir()
    (tmp_path / "judges_of_a_test" / "pair.py").write_text(JUDGE)
    monkeypatch.syspath_prepend(str(tmp_path))
    kind = "judges_of_a_test.pair"
    pairs = {"loud": {"type": kind}, "place": {"type": kind, "favours": "first"}}
    graph = build_pairs(replace(recipe, pairs=pairs))
    assert graph is not None
    silent, broken = Clip(np.zeros(0, np.float32), RATE, "", ""), tone(math.nan)
    own = [tone(0.5), tone(0.5), tone(0.1), tone(0.3), tone(0.2), silent, tone(0.1)]
    other = [tone(0.1), tone(0.2), tone(0.5), tone(0.3), tone(0.97), tone(0.1), broken]
    prompts = [Prompt(str(i), "t", "t") for i in range(7)]
    loud, place = judge_pairs(graph, prompts, own, other)
    # won, won, lost, tied; one that an order lacks; lost, as nothing is said; and one that a codec broke
    np.testing.assert_array_equal(loud.scores, [1.0, 1.0, 0.0, 0.5, math.nan, 0.0, math.nan])
    assert loud.wins.mean == 2.5 / 5
    assert (loud.wins.values, loud.wins.missing) == (5, 2)
    assert loud.missing == {"the audio isn't finite": 1, "too loud to hear": 1}
    assert (loud.consistent, loud.first) == (1.0, 0.5)
    # a judge that always prefers what it hears first: no side wins, and it shows
    np.testing.assert_array_equal(place.scores, [0.5] * 5 + [0.0, math.nan])
    assert (place.consistent, place.first) == (0.0, 1.0)
    assert place.wins.missing == 1
