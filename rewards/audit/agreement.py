"""How far raters agree: with each other, and with a reward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from scipy import stats
from sklearn.metrics import cohen_kappa_score

Scale = Literal["nominal", "ordinal", "interval"]


def krippendorff_alpha(ratings: np.ndarray, scale: Scale = "interval") -> float:
    """Krippendorff's alpha of ``ratings`` ``[raters, units]``, NaN where a rater gave none.

    ``1 - observed / expected`` disagreement, over pairs of ratings of one unit against pairs of any
    two (Krippendorff, *Content Analysis*, 2004, ch. 11): 1 is agreement, 0 is chance. NaN where fewer than
    two units have two ratings, or all ratings are equal.
    """
    columns = [column[~np.isnan(column)] for column in ratings.T]
    units = [column for column in columns if len(column) > 1]
    if len(units) < 2:
        return float("nan")
    values, places = np.unique(np.concatenate(units), return_inverse=True)
    if len(values) < 2:
        return float("nan")
    coincidence = np.zeros((len(values), len(values)))
    start = 0
    for unit in units:
        mine = places[start : start + len(unit)]
        start += len(unit)
        counts = np.bincount(mine, minlength=len(values)).astype(float)
        coincidence += (np.outer(counts, counts) - np.diag(counts)) / (len(unit) - 1)
    totals = coincidence.sum(axis=0)
    distance = _distances(values, totals, scale)
    expected = (np.outer(totals, totals) * distance).sum() / (totals.sum() - 1)
    return float(1 - (coincidence * distance).sum() / expected)


def _distances(values: np.ndarray, totals: np.ndarray, scale: Scale) -> np.ndarray:
    """Squared differences ``[V, V]`` of the values on the scale."""
    if scale == "nominal":
        return 1.0 - np.eye(len(values))
    if scale == "interval":
        return np.square(values[:, None] - values[None, :])
    ranks = np.cumsum(totals) - totals / 2  # ratings below, and half of those that are equal
    return np.square(ranks[:, None] - ranks[None, :])


def weighted_kappa(left: np.ndarray, right: np.ndarray, classes: int = 5) -> float:
    """Cohen's kappa with quadratic weights of two scores ``[N]``, each cut into ``classes`` of equal size.

    NaN where fewer than two pairs are left without their NaNs, or a side has no spread.
    """
    present = ~np.isnan(left) & ~np.isnan(right)
    a, b = left[present], right[present]
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    binned = [_classes(side, classes) for side in (a, b)]
    return float(cohen_kappa_score(*binned, weights="quadratic"))


def _classes(column: np.ndarray, classes: int) -> np.ndarray:
    ranks = stats.rankdata(column) / (len(column) + 1)
    return np.asarray(np.floor(ranks * classes), int)


def bootstrap_interval(
    figure: Callable[[np.ndarray], float], clusters: Sequence[str], resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile interval of ``figure(places)`` over draws of clusters; NaN with fewer than two."""
    names = list(dict.fromkeys(clusters))
    if len(names) < 2:
        return float("nan"), float("nan")
    by_name = {name: np.flatnonzero([cluster == name for cluster in clusters]) for name in names}
    random = np.random.default_rng(seed)
    drawn = []
    for _ in range(resamples):
        picked = random.integers(len(names), size=len(names))
        drawn.append(figure(np.concatenate([by_name[names[place]] for place in picked])))
    finite = np.array(drawn)[np.isfinite(drawn)]
    if len(finite) == 0:
        return float("nan"), float("nan")
    low, high = np.percentile(finite, [2.5, 97.5])
    return float(low), float(high)
