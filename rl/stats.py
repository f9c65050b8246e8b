"""How large is a mean, and is the difference between before and after real? A bootstrap over prompts.

Samples of one prompt resemble each other, so prompts are resampled, each with all its samples (the cluster
bootstrap of Davison & Hinkley, *Bootstrap Methods and their Application*, 1997, section 3.8); and before and
after share prompts and seeds, so the differences are resampled, not the two sides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Comparison:
    """One metric before and after, over the pairs where both sides have a value.

    ``low`` and ``high`` bound ``delta = after - before``; NaN with fewer than two prompts. ``relative`` is
    ``delta / |before|``, NaN when ``before`` is 0. ``significant``: the interval excludes 0. ``pairs`` were
    used, of ``prompts`` prompts; ``missing`` pairs lacked a side.
    """

    before: float
    after: float
    delta: float
    low: float
    high: float
    relative: float
    significant: bool
    pairs: int
    missing: int
    prompts: int


@dataclass(frozen=True)
class Estimate:
    """A mean over the ``values`` that there are, of ``prompts`` prompts; ``missing`` were left out.

    ``low`` and ``high`` bound it; NaN with fewer than two prompts, as the mean is without values.
    """

    mean: float
    low: float
    high: float
    values: int
    missing: int
    prompts: int


def estimate(
    values: np.ndarray,
    prompt_ids: Sequence[Hashable],
    *,
    weights: np.ndarray | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Estimate:
    """The mean of ``values`` (float ``[N]``, NaN is missing), each with its weight (``[N]``, default 1).

    The interval is the percentile interval of the mean over ``resamples`` draws of prompts; the same
    arguments give the same interval. Raises ValueError when lengths differ.
    """
    weigh = np.ones(len(values)) if weights is None else weights
    if not len(values) == len(prompt_ids) == len(weigh):
        raise ValueError(f"{len(values)} values, {len(prompt_ids)} prompt ids, {len(weigh)} weights")
    present = ~np.isnan(values)
    found, weigh = values[present], weigh[present]
    missing = int(len(values) - present.sum())
    cluster, clusters = _clusters([prompt_ids[i] for i in np.flatnonzero(present).tolist()])
    if not weigh.sum() > 0:
        return Estimate(math.nan, math.nan, math.nan, len(found), missing, clusters)
    low, high = _interval(found, weigh, cluster, clusters, confidence, resamples, seed)
    return Estimate(float(np.average(found, weights=weigh)), low, high, len(found), missing, clusters)


def compare(
    before: np.ndarray,
    after: np.ndarray,
    prompt_ids: Sequence[Hashable],
    *,
    weights: np.ndarray | None = None,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare paired samples; row i of ``before`` and ``after`` (float ``[N]``) share prompt and seed.

    NaN is missing: a pair with one is left out and counted. All means are weighted by ``weights`` (float
    ``[N]``, default 1). The interval is the percentile interval of the
    mean difference over ``resamples`` draws of prompts; the same arguments give the same interval. Raises
    ValueError when lengths differ.
    """
    if not len(before) == len(after) == len(prompt_ids):
        counts = f"{len(before)} before, {len(after)} after, {len(prompt_ids)} prompt ids"
        raise ValueError(f"{counts}: not paired")
    present = ~(np.isnan(before) | np.isnan(after))
    weigh = (np.ones(len(before)) if weights is None else weights)[present]
    cluster, clusters = _clusters([prompt_ids[i] for i in np.flatnonzero(present).tolist()])
    pairs = int(present.sum())
    if not weigh.sum() > 0:
        nan = math.nan
        return Comparison(nan, nan, nan, nan, nan, nan, False, 0, len(before), 0)
    left, right = (float(np.average(side[present], weights=weigh)) for side in (before, after))
    difference = after[present] - before[present]
    delta = float(np.average(difference, weights=weigh))
    low, high = _interval(difference, weigh, cluster, clusters, confidence, resamples, seed)
    return Comparison(
        before=left,
        after=right,
        delta=delta,
        low=low,
        high=high,
        relative=delta / abs(left) if left else math.nan,
        significant=bool(low > 0 or high < 0),
        pairs=pairs,
        missing=len(before) - pairs,
        prompts=clusters,
    )


def _clusters(prompts: Sequence[Hashable]) -> tuple[np.ndarray, int]:
    """The number of each row's prompt, and how many prompts there are."""
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts))}
    return np.array([numbers[prompt] for prompt in prompts], np.int64), len(numbers)


def _interval(
    values: np.ndarray,
    weights: np.ndarray,
    cluster: np.ndarray,
    clusters: int,
    confidence: float,
    resamples: int,
    seed: int,
) -> tuple[float, float]:
    """Of the weighted mean, by resampling clusters; draws without any weight are left out."""
    if clusters < 2:
        return math.nan, math.nan
    sums = np.bincount(cluster, weights=weights * values, minlength=clusters)
    sizes = np.bincount(cluster, weights=weights, minlength=clusters)
    generator = np.random.Generator(np.random.Philox(key=seed))
    drawn = generator.multinomial(clusters, np.full(clusters, 1 / clusters), size=resamples)
    drawn = drawn[drawn @ sizes > 0]
    means = (drawn @ sums) / (drawn @ sizes)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
