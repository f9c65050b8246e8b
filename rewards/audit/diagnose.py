"""What each output of a reward graph does: to the total, to its groups, over training, and to whom."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rewards.audit.clips import ClipSet
from rewards.audit.groups import (
    NO_SPREAD,
    centred,
    flat_share,
    within_spearman,
    within_variance,
)
from rewards.expression import Expression
from rewards.graph import RewardGraph
from rewards.nodes.gate import Gate
from rewards.tags import parse_target
from rewards.types import Scores

TOTAL = "total"
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True)
class Output:
    """One output, or the total, over the clips; NaN where a figure can't be had.

    ``role``: ``total``; ``gate``; ``reward``: the total names it; ``other``: a monitor, or read by other
    nodes alone. ``missing``: share of the clips without a value that no gate explains. ``quantiles``: 0, 5,
    25, 50, 75, 95 and 100 %. ``ceiling`` and ``floor``: share of the values that equal the highest and the
    lowest. ``flat``: share of the groups without spread. ``within_std``: root of the mean variance inside
    groups. ``explained``: share of the total's within-group variance that goes when this output is held at
    its group's mean (see `explained_shares`). ``with_total``: Spearman's correlation with it inside groups.
    """

    name: str
    role: str
    clips: int
    missing: float
    gated: float
    mean: float
    std: float
    quantiles: tuple[float, ...]
    ceiling: float
    floor: float
    flat: float
    within_std: float
    explained: float
    with_total: float


@dataclass(frozen=True)
class Drift:
    """An output's mean by step, and its trend: Kendall's tau with the step, and its p-value."""

    name: str
    steps: tuple[int, ...]
    means: tuple[float, ...]
    tau: float
    p: float


@dataclass(frozen=True)
class Slice:
    """Clips of one kind, such as ``tag [slow]``: how many, and the mean of each output."""

    name: str
    clips: int
    means: Mapping[str, float]


@dataclass(frozen=True)
class Diagnosis:
    """``correlations[a][b]``: Spearman inside groups. ``nuisance[output][measure]``: the same with what
    `rewards.audit.nuisance` measures. ``reasons[output]``: how many clips are missing or gated, by why.
    """

    outputs: list[Output]
    correlations: dict[str, dict[str, float]]
    nuisance: dict[str, dict[str, float]]
    reasons: dict[str, dict[str, int]]
    drift: list[Drift]
    slices: list[Slice]

    def output(self, name: str) -> Output:
        return next(output for output in self.outputs if output.name == name)


def gates_of(graph: RewardGraph) -> tuple[str, ...]:
    """The outputs that are 0 where a gate closed: of nodes like `sanity`, and the total's thresholds."""
    thresholds = [name for name in graph.total.names if isinstance(graph.nodes.get(name), Gate)]
    return (*graph.gates, *thresholds)


def diagnose(
    data: ClipSet,
    scores: Scores,
    total: Expression,
    gates: Sequence[str],
    measures: Mapping[str, np.ndarray],
) -> Diagnosis:
    """Everything about ``scores`` of ``data``, whose total is ``total``; ``measures``: of the clips.

    ``gates``: see `gates_of`.
    """
    columns = {TOTAL: scores.total, **scores.values}
    explained = explained_shares(scores, total, data.groups)
    outputs = [
        _output(name, column, _role(name, total, gates), data, scores, explained.get(name, np.nan))
        for name, column in columns.items()
    ]
    names = list(columns)
    return Diagnosis(
        outputs=outputs,
        correlations={
            a: {b: within_spearman(columns[a], columns[b], data.groups) for b in names} for a in names
        },
        nuisance={
            name: {
                measure: within_spearman(column, values, data.groups) for measure, values in measures.items()
            }
            for name, column in columns.items()
        },
        reasons=reasons_of(scores),
        drift=[_drift(name, column, data.steps) for name, column in columns.items()],
        slices=slices_of(data, columns),
    )


def explained_shares(scores: Scores, total: Expression, groups: np.ndarray) -> dict[str, float]:
    """For each output that ``total`` names: ``1 - V' / V``, with V the total's variance inside groups and V'
    the same with that output held at its group's mean.

    For a sum of independent terms these are their shares of the variance, and add up to 1. Where terms pull
    against each other they can be negative or above 1. Gated clips keep their floor and are left out.
    """
    usable = ~scores.gated & ~np.isnan(scores.total)
    values = {name: np.where(usable, scores.values[name], np.nan) for name in total.names}
    whole = within_variance(np.where(usable, scores.total, np.nan), groups)
    if not whole > NO_SPREAD**2:
        return dict.fromkeys(total.names, np.nan)
    shares = {}
    for name in total.names:
        held = {**values, name: values[name] - centred(values[name], groups)}
        shares[name] = 1 - within_variance(_finite(total.evaluate(held)), groups) / whole
    return shares


def reasons_of(scores: Scores) -> dict[str, dict[str, int]]:
    """By output: how often each reason stands, the most frequent first. Numbers in reasons are written #."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for row, gated in zip(scores.reasons, scores.gated, strict=True):
        for output, reason in row.items():
            found[output][_NUMBER.sub("#", reason)] += 1
        if gated:
            why = next((reason for reason in row.values() if reason.startswith("gated by")), "gated")
            found[TOTAL][_NUMBER.sub("#", why)] += 1
    return {output: dict(counts.most_common()) for output, counts in found.items()}


def slices_of(data: ClipSet, columns: Mapping[str, np.ndarray]) -> list[Slice]:
    """By language and speaker in the clips' ``meta``, by speaker tag and vocal tag; kinds that differ."""
    found: dict[str, list[int]] = defaultdict(list)
    for place, clip in enumerate(data.clips):
        target = parse_target(clip.text)
        kinds = {f"{key} {clip.meta[key]}" for key in ("language", "speaker") if key in clip.meta}
        kinds |= {f"voice {turn.speaker}" for turn in target.turns if turn.speaker is not None}
        kinds |= {f"tag [{instruction.tag}]" for instruction in target.instructions} or {"no vocal tag"}
        for kind in kinds:
            found[kind].append(place)
    return [
        Slice(name, len(places), {output: _mean(column[places]) for output, column in columns.items()})
        for name, places in sorted(found.items())
        if len(places) < len(data)
    ]


def _output(
    name: str, column: np.ndarray, role: str, data: ClipSet, scores: Scores, explained: float
) -> Output:
    present = column[~np.isnan(column)]
    some = len(present) > 0
    top, bottom = (present.max(), present.min()) if some else (np.nan, np.nan)
    levels = (0, 5, 25, 50, 75, 95, 100)
    return Output(
        name=name,
        role=role,
        clips=len(column),
        missing=float(np.mean(np.isnan(column) & ~scores.gated)),
        gated=float(scores.gated.mean()),
        mean=_mean(column),
        std=float(present.std()) if some else np.nan,
        quantiles=tuple(float(q) for q in np.percentile(present, levels)) if some else (np.nan,) * 7,
        ceiling=float(np.mean(present >= top - NO_SPREAD)) if some else np.nan,
        floor=float(np.mean(present <= bottom + NO_SPREAD)) if some else np.nan,
        flat=flat_share(column, data.groups),
        within_std=float(np.sqrt(within_variance(column, data.groups))),
        explained=explained,
        with_total=within_spearman(column, scores.total, data.groups) if name != TOTAL else 1.0,
    )


def _role(name: str, total: Expression, gates: Sequence[str]) -> str:
    if name == TOTAL:
        return TOTAL
    if name in gates:
        return "gate"
    return "reward" if name in total.names else "other"


def _drift(name: str, column: np.ndarray, steps: np.ndarray) -> Drift:
    found = {int(step): _mean(column[steps == step]) for step in np.unique(steps)}
    found = {step: mean for step, mean in found.items() if not np.isnan(mean)}
    tau, p = np.nan, np.nan
    if len(found) >= 4 and np.ptp(list(found.values())) >= NO_SPREAD:
        result = stats.kendalltau(list(found), list(found.values()))
        tau, p = float(result.statistic), float(result.pvalue)
    return Drift(name, tuple(found), tuple(found.values()), tau, p)


def _mean(column: np.ndarray) -> float:
    present = column[~np.isnan(column)]
    return float(present.mean()) if len(present) else np.nan


def _finite(column: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(column), column, np.nan)
