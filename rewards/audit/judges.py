"""Is a judge a measure, or noise? Asked again, in another order, in other words, and against other judges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from rewards.audit.agreement import weighted_kappa
from rewards.audit.clips import ClipSet
from rewards.audit.groups import within_spearman, within_variance
from rewards.audit.rescore import Progress, rescore
from rewards.endpoints.verdict import instruction_of
from rewards.graph import build_graph
from rewards.types import Clip

WORDINGS = ("Please speak like this: {}", "The voice should be as follows: {}.")
"""Paraphrases of an instruction that ask for the same."""


@dataclass(frozen=True)
class JudgeNoise:
    """One judge's scores of ``clips`` clips, asked ``how`` a second time: ``again``, in reversed ``order``,
    or in another ``wording``.

    ``changed``: share of the clips whose score is another. ``noise``: standard deviation of one score,
    ``std(difference) / sqrt(2)``, over the scores' standard deviation inside groups: at 1 the judge's
    differences between samples are all noise.
    """

    judge: str
    how: str
    clips: int
    changed: float
    noise: float


@dataclass(frozen=True)
class JudgePair:
    """Two judges of the same clips: Spearman inside groups, and Cohen's kappa (quadratic, five classes)."""

    left: str
    right: str
    rank_correlation: float
    kappa: float


def judge_noise(
    data: ClipSet, rewards: Mapping[str, Any], judges: Sequence[str], progress: Progress = lambda clips: None
) -> list[JudgeNoise]:
    """Ask the ``judges`` (outputs) about ``data`` afresh, and then again in each way that there is.

    Past answers of endpoints aren't used, or they would repeat themselves. Other nodes run too, as judges
    read them.
    """
    graph = build_graph(_uncached(rewards))
    backwards = replace(data, batches=[batch[::-1] for batch in data.batches])
    ways = {"again": data, "order": backwards}
    if any(instruction_of(clip) for clip in data.clips):
        ways["wording"] = replace(data, clips=[_reworded(clip, i) for i, clip in enumerate(data.clips)])
    first = rescore(data, graph, progress=progress)
    found = []
    for how, asked in ways.items():
        second = rescore(asked, graph, progress=progress)
        for judge in judges:
            a, b = first.values[judge], second.values[judge]
            both = ~np.isnan(a) & ~np.isnan(b)
            if both.any():
                noise = float(np.std((b - a)[both]) / np.sqrt(2))
                spread = float(np.sqrt(within_variance(a, data.groups)))
                found.append(
                    JudgeNoise(
                        judge,
                        how,
                        int(both.sum()),
                        float(np.mean(a[both] != b[both])),
                        noise / spread if spread > 0 else (0.0 if noise == 0 else float("inf")),
                    )
                )
    graph.close()
    return found


def judge_pairs(data: ClipSet, values: Mapping[str, np.ndarray], judges: Sequence[str]) -> list[JudgePair]:
    """Every two of the ``judges``, on the scores that they gave."""
    return [
        JudgePair(
            a, b, within_spearman(values[a], values[b], data.groups), weighted_kappa(values[a], values[b])
        )
        for a, b in combinations(judges, 2)
    ]


def _uncached(rewards: Mapping[str, Any]) -> dict[str, Any]:
    nodes = {
        name: {**options, "cache": None} if options is not None and "base_url" in options else options
        for name, options in rewards["nodes"].items()
    }
    return {**rewards, "nodes": nodes}


def _reworded(clip: Clip, number: int) -> Clip:
    asked = instruction_of(clip)
    if asked is None:
        return clip
    return replace(clip, meta={**clip.meta, "instruction": WORDINGS[number % len(WORDINGS)].format(asked)})
