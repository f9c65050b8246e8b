"""Is the difference between before and after real? A paired bootstrap over prompts.

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


def compare(
    before: np.ndarray,
    after: np.ndarray,
    prompt_ids: Sequence[Hashable],
    *,
    confidence: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Comparison:
    """Compare paired samples; row i of ``before`` and ``after`` (float ``[N]``) share prompt and seed.

    NaN is missing: a pair with one is left out and counted. The interval is the percentile interval of the
    mean difference over ``resamples`` draws of prompts; the same arguments give the same interval. Raises
    ValueError when lengths differ.
    """
    if not len(before) == len(after) == len(prompt_ids):
        counts = f"{len(before)} before, {len(after)} after, {len(prompt_ids)} prompt ids"
        raise ValueError(f"{counts}: not paired")
    present = ~(np.isnan(before) | np.isnan(after))
    used = [prompt_ids[i] for i in np.flatnonzero(present).tolist()]
    numbers = {prompt: number for number, prompt in enumerate(dict.fromkeys(used))}
    cluster = np.array([numbers[prompt] for prompt in used])
    pairs = int(present.sum())
    if pairs == 0:
        nan = math.nan
        return Comparison(nan, nan, nan, nan, nan, nan, False, 0, len(before), 0)
    left, right = float(before[present].mean()), float(after[present].mean())
    difference = after[present] - before[present]
    delta = float(difference.mean())
    low, high = _interval(difference, cluster, len(numbers), confidence, resamples, seed)
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
        prompts=len(numbers),
    )


def _interval(
    difference: np.ndarray, cluster: np.ndarray, clusters: int, confidence: float, resamples: int, seed: int
) -> tuple[float, float]:
    if clusters < 2:
        return math.nan, math.nan
    sums = np.bincount(cluster, weights=difference, minlength=clusters)
    sizes = np.bincount(cluster, minlength=clusters)
    generator = np.random.Generator(np.random.Philox(key=seed))
    drawn = generator.multinomial(clusters, np.full(clusters, 1 / clusters), size=resamples)
    means = (drawn @ sums) / (drawn @ sizes)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    return float(low), float(high)
