"""Which side is preferred? Each pair of clips is judged twice, so that the place can't decide.

A win counts 1 and a tie 1/2, as in EmergentTTS-Eval (Manku et al., arXiv:2505.23009), which judges each pair
in one order, drawn at random.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rewards.graph import RewardGraph
from rewards.types import Clip
from rl.evals.figures import item_of
from rl.evals.sides import score_clips
from rl.stats import Estimate, estimate
from rollouts.types import Prompt


@dataclass(frozen=True)
class Preference:
    """What one judge says of the pairs.

    ``wins``: the mean over items of ``(p + 1 - q) / 2``, with p the judge's preference for this side's clip
    heard first, q that for the other side's heard first. ``consistent``: share of the pairs of which both
    orders say the same. ``first``: preference for what is heard first, 0.5 for a judge that doesn't mind.
    An item that lacks one of its two judgements is missing. A clip of no length loses without being judged.
    ``scores``: float64 ``[N]``, each item's.
    """

    judge: str
    wins: Estimate
    consistent: float
    first: float
    missing: dict[str, int] = field(default_factory=dict)
    scores: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False, compare=False)


def judge_pairs(
    graph: RewardGraph, prompts: Sequence[Prompt], own: Sequence[Clip], other: Sequence[Clip]
) -> list[Preference]:
    """Every judge of ``graph`` on each pair of clips of one prompt, in both orders."""
    settled = np.array([_without_hearing(a, b) for a, b in zip(own, other, strict=True)], np.float64)
    usable = [i for i in np.flatnonzero(np.isnan(settled)).tolist() if _finite(own[i]) and _finite(other[i])]
    ordered = [_facing(own[i], other[i]) for i in usable] + [_facing(other[i], own[i]) for i in usable]
    scores = score_clips(graph, ordered, "comparing")
    found = []
    for judge, column in scores.values.items():
        p, q = column[: len(usable)], column[len(usable) :]
        wins = settled.copy()
        wins[usable] = (p + 1 - q) / 2
        both = ~np.isnan(p) & ~np.isnan(q)
        broken = len(prompts) - len(usable) - np.count_nonzero(~np.isnan(settled))
        why = Counter({"the audio isn't finite": int(broken)})
        for i in np.flatnonzero(~both).tolist():
            rows = (scores.reasons[i], scores.reasons[i + len(usable)])
            why[next(row[judge] for row in rows if judge in row)] += 1
        items = [item_of(prompt) for prompt in prompts]
        found.append(
            Preference(
                judge,
                estimate(wins, items),
                float(np.mean(p[both] == 1 - q[both])) if both.any() else np.nan,
                float(np.mean((p[both] + q[both]) / 2)) if both.any() else np.nan,
                {reason: count for reason, count in why.items() if count},
                wins,
            )
        )
    return found


def _facing(clip: Clip, rival: Clip) -> Clip:
    return replace(clip, rival=(rival.audio, rival.sample_rate))


def _without_hearing(own: Clip, other: Clip) -> float:
    """The preference where a clip has no length; NaN where both have."""
    if len(own.audio) and len(other.audio):
        return np.nan
    return (1 + np.sign(len(own.audio) - len(other.audio))) / 2


def _finite(clip: Clip) -> bool:
    return bool(np.isfinite(clip.audio).all())
