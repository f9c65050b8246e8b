"""Two rewards of the same clips side by side, and what another total of the same values would say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rewards.audit.clips import ClipSet
from rewards.audit.groups import best_places, centred, within_spearman
from rewards.types import Scores
from rl.stats import Comparison, compare


@dataclass(frozen=True)
class Mover:
    """A clip whose place in its group changes: its advantage by either reward, over that reward's spread."""

    clip: str
    left: float
    right: float


@dataclass(frozen=True)
class RecipeComparison:
    """Reward ``right`` against ``left`` on the same clips.

    ``rank_correlation``: Spearman's inside groups. ``sign_changes``: share of the clips whose advantage
    (reward less its group's mean) has another sign. ``other_best``: share of the groups of which the best
    clip is another; ``best_of``: the usual size of a group. ``movers``: the clips that move most.
    """

    left: str
    right: str
    clips: int
    rank_correlation: float
    sign_changes: float
    other_best: float
    best_of: int
    movers: list[Mover]


def compare_recipes(
    data: ClipSet, left: Scores, right: Scores, names: tuple[str, str], movers: int = 10
) -> RecipeComparison:
    """`RecipeComparison` of two rewards of ``data``; clips without a total on a side are left out."""
    present = ~np.isnan(left.total) & ~np.isnan(right.total)
    a, b = (np.where(present, scores.total, np.nan) for scores in (left, right))
    advantages = [centred(column, data.groups) for column in (a, b)]
    signs = [np.sign(np.where(np.abs(column) < 1e-9, 0, column)) for column in advantages]
    scaled = [column / (np.nanstd(column) or 1.0) for column in advantages]
    best = [best_places(column, data.groups) for column in (a, b)]
    distance = np.nan_to_num(np.abs(scaled[1] - scaled[0]))
    furthest = np.argsort(-distance, kind="stable")[:movers]
    sizes = np.unique(data.groups, return_counts=True)[1]
    return RecipeComparison(
        left=names[0],
        right=names[1],
        clips=int(present.sum()),
        rank_correlation=within_spearman(a, b, data.groups),
        sign_changes=float(np.mean(signs[0][present] != signs[1][present])) if present.any() else np.nan,
        other_best=float(np.mean([best[1][group] != place for group, place in best[0].items()]))
        if best[0]
        else np.nan,
        best_of=int(np.median(sizes)),
        movers=[
            Mover(data.ids[i], float(scaled[0][i]), float(scaled[1][i]))
            for i in furthest.tolist()
            if distance[i] > 0
        ],
    )


def compare_runs(
    left: ClipSet, left_scores: Scores, right: ClipSet, right_scores: Scores
) -> dict[str, Comparison]:
    """Each output that both have, and the total, before (``left``) and after (``right``).

    Clips of one prompt and place in it are pairs, as the evaluation before and after training has them; the
    interval is a bootstrap over prompts. Empty where the two share no clip.
    """
    here = {key: place for place, key in enumerate(_pair_keys(left))}
    pairs = [(here[key], place) for place, key in enumerate(_pair_keys(right)) if key in here]
    if not pairs:
        return {}
    before, after = (np.array(side) for side in zip(*pairs, strict=True))
    columns = {"total": (left_scores.total, right_scores.total)}
    columns |= {
        name: (column, right_scores.values[name])
        for name, column in left_scores.values.items()
        if name in right_scores.values
    }
    prompts = [left.prompts[place] for place in before.tolist()]
    return {name: compare(a[before], b[after], prompts) for name, (a, b) in columns.items()}


def _pair_keys(data: ClipSet) -> list[tuple[str, int]]:
    """Prompt and place among its clips, in their order."""
    seen: dict[str, int] = {}
    keys = []
    for prompt in data.prompts:
        seen[prompt] = seen.get(prompt, -1) + 1
        keys.append((prompt, seen[prompt]))
    return keys
