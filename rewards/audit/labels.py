"""What people say of the clips, and how far the reward agrees with them."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from rewards.audit.agreement import bootstrap_interval, krippendorff_alpha, weighted_kappa
from rewards.audit.clips import ClipSet
from rewards.audit.groups import within_spearman
from rl.errors import AuditError

COLUMNS = ("clip", "rater", "score", "other", "choice")
"""Of a label file: ``score`` of a clip, or ``choice`` (``clip``, ``other`` or ``same``) between two."""


@dataclass(frozen=True)
class Label:
    """One answer: a ``score`` of ``clip``, or the better of ``clip`` and ``other``: 1, -1, or 0 for equal."""

    clip: str
    rater: str
    score: float | None = None
    other: str | None = None
    choice: int | None = None


@dataclass(frozen=True)
class Bin:
    """Clips whose reward is about alike: their mean reward, and people's mean score of them."""

    reward: float
    people: float
    clips: int


@dataclass(frozen=True)
class Calibration:
    """An output against people.

    ``spearman``: of the clips' mean scores, over all clips, ``low`` to ``high`` its 95 % bootstrap interval
    over prompts; ``within``: inside groups; ``kappa``: Cohen's, quadratic, in five classes. ``choices``:
    share of the pairwise choices that the output makes, too (equal ones left out), with its interval. NaN
    where there are no such labels. ``bins``: the reliability plot, fifths of the clips by the output.
    """

    output: str
    clips: int
    spearman: float
    low: float
    high: float
    within: float
    kappa: float
    pairs: int
    choices: float
    choices_low: float
    choices_high: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class People:
    """``alpha``: Krippendorff's of the scores (ordinal), ``choice_alpha`` of the choices (nominal)."""

    raters: int
    labels: int
    alpha: float
    choice_alpha: float
    calibrations: list[Calibration]


def read_labels(path: Path, known: Sequence[str]) -> list[Label]:
    """The labels in a CSV file with the columns of `COLUMNS`. Raises `AuditError`, naming the line.

    ``known``: ids of the clips; others are an error.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"{path}: can't be read as UTF-8 text ({error})") from error
    reader = csv.DictReader(io.StringIO(text))
    header = reader.fieldnames or []
    if "clip" not in header or not {"score", "choice"} & set(header):
        raise AuditError(f"{path}: needs the columns clip, rater and score, or clip, other, rater and choice")
    ids = set(known)
    labels = [_label(row, f"{path}, line {reader.line_num}", ids) for row in reader]
    if not labels:
        raise AuditError(f"{path}: holds no labels")
    return labels


def _label(row: Mapping[str, str | None], where: str, known: set[str]) -> Label:
    clip, rater = row.get("clip") or "", row.get("rater") or "?"
    for name in (clip, row.get("other") or clip):
        if name not in known:
            raise AuditError(f"{where}: no clip {name!r} in this audit; audit the clips that were labelled")
    if row.get("choice"):
        choices = {"clip": 1, "other": -1, "same": 0}
        if row["choice"] not in choices or not row.get("other"):
            raise AuditError(f"{where}: choice must be clip, other or same, between clip and other")
        return Label(clip, rater, other=row["other"], choice=choices[str(row["choice"])])
    try:
        score = float(row.get("score") or "")
    except ValueError:
        score = np.nan
    if not np.isfinite(score):
        raise AuditError(f"{where}: score must be a number, not {row.get('score')!r}")
    return Label(clip, rater, score=score)


def calibrate(data: ClipSet, columns: Mapping[str, np.ndarray], labels: Sequence[Label]) -> People:
    """How far people agree among themselves, and each of ``columns`` (by output, ``[N]``) with them."""
    places = {name: place for place, name in enumerate(data.ids)}
    scores = _by_rater([(x.rater, x.clip, x.score) for x in labels if x.score is not None])
    chosen = [_in_order(x) for x in labels if x.choice is not None]
    choices = _by_rater([(rater, f"{a}\n{b}", float(choice)) for rater, a, b, choice in chosen])
    people = np.full(len(data), np.nan)
    for clip in {x.clip for x in labels if x.score is not None}:
        people[places[clip]] = float(
            np.mean([x.score for x in labels if x.clip == clip and x.score is not None])
        )
    pairs = [(places[a], places[b], choice) for _, a, b, choice in chosen if choice]
    return People(
        raters=len({x.rater for x in labels}),
        labels=len(labels),
        alpha=krippendorff_alpha(scores, "ordinal") if scores.size else np.nan,
        choice_alpha=krippendorff_alpha(choices, "nominal") if choices.size else np.nan,
        calibrations=[_calibration(name, column, people, pairs, data) for name, column in columns.items()],
    )


def _calibration(
    name: str, column: np.ndarray, people: np.ndarray, pairs: Sequence[tuple[int, int, int]], data: ClipSet
) -> Calibration:
    both = np.flatnonzero(~np.isnan(column) & ~np.isnan(people))
    prompts = [data.prompts[place] for place in both.tolist()]

    def spearman(chosen: np.ndarray) -> float:
        a, b = column[both[chosen]], people[both[chosen]]
        if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
            return float("nan")
        return float(stats.spearmanr(a, b).statistic)

    low, high = bootstrap_interval(spearman, prompts)
    told = [(a, b, choice) for a, b, choice in pairs if not np.isnan(column[[a, b]]).any()]
    right = np.array([np.sign(column[a] - column[b]) == choice for a, b, choice in told], float)
    choices_low, choices_high = bootstrap_interval(
        lambda chosen: float(right[chosen].mean()), [data.prompts[a] for a, _, _ in told]
    )
    return Calibration(
        output=name,
        clips=len(both),
        spearman=spearman(np.arange(len(both))),
        low=low,
        high=high,
        within=within_spearman(column, people, data.groups),
        kappa=weighted_kappa(column, people),
        pairs=len(told),
        choices=float(right.mean()) if told else np.nan,
        choices_low=choices_low,
        choices_high=choices_high,
        bins=_bins(column[both], people[both]),
    )


def _bins(column: np.ndarray, people: np.ndarray, count: int = 5) -> tuple[Bin, ...]:
    parts = np.array_split(np.argsort(column, kind="stable"), count)
    return tuple(Bin(float(column[p].mean()), float(people[p].mean()), len(p)) for p in parts if len(p))


def _by_rater(answers: Sequence[tuple[str, str, float]]) -> np.ndarray:
    """``[raters, units]`` of answers, NaN where there is none; of two by one rater the later counts."""
    raters = list(dict.fromkeys(rater for rater, _, _ in answers))
    units = list(dict.fromkeys(unit for _, unit, _ in answers))
    table = np.full((len(raters), len(units)), np.nan)
    for rater, unit, value in answers:
        table[raters.index(rater), units.index(unit)] = value
    return table


def _in_order(label: Label) -> tuple[str, str, str, int]:
    """Rater, two clips in the order of their names, and the choice: the same pair shown either way is one."""
    assert label.other is not None
    assert label.choice is not None
    if label.clip <= label.other:
        return label.rater, label.clip, label.other, label.choice
    return label.rater, label.other, label.clip, -label.choice
