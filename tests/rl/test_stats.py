"""The paired bootstrap against hand-computed values, and its coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl.stats import compare, estimate


def test_hand_computed() -> None:
    before = np.array([1.0, 3.0, 2.0, 2.0])
    after = np.array([2.0, 4.0, 3.0, 3.0])
    result = compare(before, after, ["a", "a", "b", "b"])
    assert (result.before, result.after, result.delta) == (2.0, 3.0, 1.0)
    assert (result.low, result.high) == (1.0, 1.0)  # every difference is 1, so is every resampled mean
    assert result.relative == 0.5
    assert result.significant
    assert (result.pairs, result.missing, result.prompts) == (4, 0, 2)


def test_prompts_are_resampled_whole() -> None:
    # Two prompts, differences 0 and 1. A resample is {a,a}, {a,b} or {b,b} with probability 1/4, 1/2, 1/4, so
    # the 2.5% and 97.5% quantiles are 0 and 1. Resampling the 2000 samples would give about 0.5 +- 0.02.
    after = np.repeat([0.0, 1.0], 1000)
    result = compare(np.zeros(2000), after, np.repeat([0, 1], 1000).tolist())
    assert (result.low, result.high) == (0.0, 1.0)
    assert result.delta == 0.5
    assert not result.significant
    assert math.isnan(result.relative)


def test_missing_is_pairwise_and_counted() -> None:
    before = np.array([1.0, np.nan, 5.0, 2.0, 2.0])
    after = np.array([2.0, 9.0, np.nan, 2.0, 1.0])
    result = compare(before, after, list("aabbc"))
    assert result.before == pytest.approx(5 / 3)
    assert result.after == pytest.approx(5 / 3)
    assert result.delta == 0.0
    assert (result.pairs, result.missing, result.prompts) == (3, 2, 3)


def test_too_little_to_judge() -> None:
    one = compare(np.zeros(3), np.ones(3), ["a"] * 3)
    assert one.delta == 1.0
    assert math.isnan(one.low)
    assert math.isnan(one.high)
    assert not one.significant
    none = compare(np.array([np.nan]), np.array([1.0]), ["a"])
    assert math.isnan(none.delta)
    assert (none.pairs, none.missing, none.prompts) == (0, 1, 0)
    with pytest.raises(ValueError, match="not paired"):
        compare(np.zeros(2), np.zeros(3), ["a", "b"])


def test_same_arguments_same_interval() -> None:
    rng = np.random.Generator(np.random.Philox(key=5))
    before, after = rng.normal(size=(2, 40))
    prompts = np.repeat(np.arange(10), 4).tolist()
    assert compare(before, after, prompts) == compare(before, after, prompts)
    assert compare(before, after, prompts) != compare(before, after, prompts, seed=1)


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.Generator(np.random.Philox(key=1))
    prompts = np.repeat(np.arange(40), 4)
    hits = 0
    for trial in range(300):
        effect = 0.3 + rng.normal(size=40)[prompts] + 0.5 * rng.normal(size=160)
        result = compare(np.zeros(160), effect, prompts.tolist(), resamples=500, seed=trial)
        hits += result.low <= 0.3 <= result.high
    assert 0.90 <= hits / 300 <= 0.98


def test_a_mean_by_hand() -> None:
    result = estimate(np.array([0.0, 1.0, np.nan, 0.0]), list("abcd"))
    assert result.mean == pytest.approx(1 / 3)
    assert (result.values, result.missing, result.prompts) == (3, 1, 3)
    # of three prompts with values 0, 1, 0, all draws are without the 1 in 8 of 27 cases, and all 1 in 1 of 27
    assert (result.low, result.high) == (0.0, 1.0)


def test_weights_by_hand() -> None:
    result = estimate(np.array([0.5, 0.0, 1.0]), list("abc"), weights=np.array([2.0, 6.0, 0.0]))
    assert result.mean == pytest.approx(1 / 8)
    assert (result.low, result.high) == (0.0, 0.5)  # draws of `c` alone weigh nothing and say nothing
    change = compare(
        np.array([0.5, 0.0]), np.array([1.0, 0.25]), list("ab"), weights=np.array([2.0, 6.0]), resamples=2000
    )
    assert (change.before, change.after, change.delta) == pytest.approx((1 / 8, 7 / 16, 5 / 16))
    assert (change.low, change.high) == (0.25, 0.5)


def test_too_little_for_a_mean_or_an_interval() -> None:
    one = estimate(np.array([3.0]), ["a"])
    assert one.mean == 3.0
    assert math.isnan(one.low)
    none = estimate(np.array([np.nan]), ["a"])
    assert math.isnan(none.mean)
    assert (none.values, none.missing) == (0, 1)
    assert math.isnan(estimate(np.ones(2), ["a", "b"], weights=np.zeros(2)).mean)
    with pytest.raises(ValueError, match="weights"):
        estimate(np.ones(2), ["a", "b"], weights=np.ones(3))
