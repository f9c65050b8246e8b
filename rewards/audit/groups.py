"""Statistics inside groups: an advantage sees only the differences between samples of one prompt."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy import stats

NO_SPREAD = 1e-9
"""A group whose largest and smallest value are nearer than this says nothing."""


def members(groups: np.ndarray) -> Iterator[np.ndarray]:
    """The places of each group ``[n]``, group by group."""
    order = np.argsort(groups, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def centred(column: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """``column`` ``[N]`` less the mean of its group; NaNs are left out of it and stay."""
    result = np.full(len(column), np.nan)
    for places in members(groups):
        present = places[~np.isnan(column[places])]
        if len(present):
            result[present] = column[present] - column[present].mean()
    return result


def within_variance(column: np.ndarray, groups: np.ndarray) -> float:
    """Mean squared difference from the group's mean, over groups of two and more; NaN without any."""
    squares = [np.square(column[p] - column[p].mean()) for p in _present(groups, column) if len(p) > 1]
    return float(np.concatenate(squares).mean()) if squares else np.nan


def flat_share(column: np.ndarray, groups: np.ndarray) -> float:
    """Share of the groups of two values and more that have no spread; NaN without such groups."""
    flat = [np.ptp(column[p]) < NO_SPREAD for p in _present(groups, column) if len(p) > 1]
    return float(np.mean(flat)) if flat else np.nan


def within_spearman(left: np.ndarray, right: np.ndarray, groups: np.ndarray) -> float:
    """Spearman's rank correlation inside each group, averaged over the groups.

    Pairs with a NaN are left out, and so are groups with fewer than three pairs or without spread on a side.
    NaN where no group is left.
    """
    found = []
    for places in _present(groups, left, right):
        a, b = left[places], right[places]
        if len(places) >= 3 and np.ptp(a) >= NO_SPREAD and np.ptp(b) >= NO_SPREAD:
            found.append(np.corrcoef(stats.rankdata(a), stats.rankdata(b))[0, 1])
    return float(np.mean(found)) if found else np.nan


def best_places(column: np.ndarray, groups: np.ndarray) -> dict[int, int]:
    """By group: the place of its highest value, the first of equals. Groups without values have none."""
    return {
        int(groups[places[0]]): int(places[np.argmax(column[places])])
        for places in _present(groups, column)
        if len(places)
    }


def _present(groups: np.ndarray, *columns: np.ndarray) -> Iterator[np.ndarray]:
    """The places of each group where no column is NaN."""
    missing = np.any([np.isnan(column) for column in columns], axis=0)
    for places in members(groups):
        yield places[~missing[places]]
