"""From scores to the result's lines: means with intervals, and one side against another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from rewards.tags import parse_target
from rewards.text import units
from rewards.types import Scores
from rl.evals.recipe import Figure, Recipe
from rl.stats import Comparison, Estimate, compare, estimate
from rollouts.types import Prompt

ALL = "all"
"""The kind of a line that is over all items."""


@dataclass(frozen=True)
class Line:
    """A figure over the items of one ``kind``, with why values are ``missing`` and how often."""

    name: str
    kind: str
    better: str
    weigh: str
    estimate: Estimate
    missing: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Difference:
    """A figure of the other side (``before``) and this one (``after``), over the items that both have."""

    name: str
    kind: str
    better: str
    comparison: Comparison


def values_of(recipe: Recipe, scores: Scores) -> dict[str, np.ndarray]:
    """Each figure's value for each item: float64 ``[N]``, NaN where it is missing."""
    values = {}
    for name, expression in recipe.expressions.items():
        found = expression.evaluate(scores.values)
        values[name] = np.where(np.isfinite(found), found, np.nan)
    return values


def lines(
    recipe: Recipe, prompts: Sequence[Prompt], scores: Scores, values: dict[str, np.ndarray]
) -> list[Line]:
    """Every figure over all items, then over those of each kind, if there are several."""
    found = []
    for kind, places in _kinds(prompts).items():
        for name, figure in recipe.figures.items():
            outputs = recipe.expressions[name].names
            column = values[name][places]
            lacking = [places[i] for i in np.flatnonzero(np.isnan(column)).tolist()]
            why = Counter(_reason(scores.reasons[i], outputs) for i in lacking)
            weights = _weights(figure, prompts)[places]
            result = estimate(column, [item_of(prompts[i]) for i in places], weights=weights)
            found.append(Line(name, kind, figure.better, figure.weigh, result, dict(why.most_common())))
    return found


def differences(
    recipe: Recipe, prompts: Sequence[Prompt], own: dict[str, np.ndarray], other: dict[str, np.ndarray]
) -> list[Difference]:
    """Every figure of one side against the other's, over all items and by kind."""
    return [
        Difference(
            name,
            kind,
            figure.better,
            compare(
                other[name][places],
                own[name][places],
                [item_of(prompts[i]) for i in places],
                weights=_weights(figure, prompts)[places],
            ),
        )
        for kind, places in _kinds(prompts).items()
        for name, figure in recipe.figures.items()
    ]


def _kinds(prompts: Sequence[Prompt]) -> dict[str, list[int]]:
    """The places of all items, and of each kind's."""
    kinds: dict[str, list[int]] = {}
    for place, prompt in enumerate(prompts):
        if "kind" in prompt.meta:
            kinds.setdefault(str(prompt.meta["kind"]), []).append(place)
    several = {kind: places for kind, places in kinds.items() if len(kinds) > 1 and kind != ALL}
    return {ALL: list(range(len(prompts))), **several}


def item_of(prompt: Prompt) -> str:
    """What the bootstrap draws together: the item that a prompt belongs to, or else the prompt."""
    return str(prompt.meta.get("item", prompt.id))


def _weights(figure: Figure, prompts: Sequence[Prompt]) -> np.ndarray:
    """float64 ``[N]``: of an item, the number of its words (Han characters and kana singly) or vocal tags."""
    if figure.weigh == "words":
        return np.array([len(units(prompt.spoken, "seed_tts")) for prompt in prompts], np.float64)
    if figure.weigh == "tags":
        return np.array([len(parse_target(prompt.text).instructions) for prompt in prompts], np.float64)
    return np.ones(len(prompts))


def _reason(reasons: dict[str, str], outputs: Sequence[str]) -> str:
    return next((reasons[name] for name in outputs if name in reasons), "no finite number")
