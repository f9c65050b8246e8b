"""Statistics with known right values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.audit.agreement import bootstrap_interval, krippendorff_alpha, weighted_kappa
from rewards.audit.clips import ClipSet, spread_evenly
from rewards.audit.compare import compare_recipes
from rewards.audit.diagnose import diagnose, explained_shares, reasons_of
from rewards.audit.groups import best_places, centred, flat_share, within_spearman, within_variance
from rewards.expression import parse_expression
from rewards.types import Clip, Scores

NAN = np.nan
FOUR_BY_TWELVE = np.array(  # Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), section C
    [
        [1, 2, 3, 3, 2, 1, 4, 1, 2, NAN, NAN, NAN],
        [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, NAN, 3],
        [NAN, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, NAN],
        [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, NAN],
    ]
)


def total_of(text: str):
    return parse_expression(text, lambda name: name, "total")


def scores(total: np.ndarray, **values: np.ndarray) -> Scores:
    count = len(total)
    reasons: list[dict[str, str]] = [{} for _ in range(count)]
    return Scores(values, total, reasons, [{} for _ in range(count)], np.zeros(count, bool))


def clip_set(groups: np.ndarray, steps: np.ndarray | None = None) -> ClipSet:
    count = len(groups)
    clips = [Clip(np.zeros(10, np.float32), 16000, "a", "a") for _ in range(count)]
    ids = [str(i) for i in range(count)]
    steps = np.zeros(count, int) if steps is None else steps
    return ClipSet("x", ids, clips, [str(g) for g in groups], groups, steps, [np.arange(count)])


@pytest.mark.parametrize(("scale", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_krippendorff(scale, alpha: float) -> None:
    assert krippendorff_alpha(FOUR_BY_TWELVE, scale) == pytest.approx(alpha, abs=5e-4)
    assert np.isnan(krippendorff_alpha(np.full((2, 3), 1.0), scale))
    assert krippendorff_alpha(np.array([[1.0, 2, 3], [1, 2, 3]]), scale) == 1


def test_kappa_is_one_for_the_same_order_and_minus_one_for_the_reverse() -> None:
    column = np.arange(25.0)
    assert weighted_kappa(column, 3 * column) == 1
    assert weighted_kappa(column, -column) == pytest.approx(-1)
    assert np.isnan(weighted_kappa(column, np.zeros(25)))


def test_bootstrap_of_equal_clusters_is_a_point() -> None:
    column = np.array([1.0, 3, 1, 3])
    assert bootstrap_interval(lambda places: float(column[places].mean()), ["a", "a", "b", "b"]) == (2, 2)
    assert np.isnan(bootstrap_interval(lambda places: 0.0, ["a"])[0])


def test_inside_groups() -> None:
    groups = np.array([4, 4, 4, 7, 7, 7, 9])
    column = np.array([1.0, 2, 3, 10, 10, NAN, 5])
    np.testing.assert_allclose(centred(column, groups), [-1, 0, 1, 0, 0, NAN, 0])
    assert within_variance(column, groups) == pytest.approx(2 / 5)
    assert flat_share(column, groups) == 0.5
    assert best_places(column, groups) == {4: 2, 7: 3, 9: 6}
    # between the groups it goes up, inside them down
    assert within_spearman(np.array([1.0, 2, 3, 11, 12, 13, 0]), -centred(column, groups), groups) == -1


def test_explained_shares_of_independent_terms_add_up() -> None:
    groups = np.repeat(np.arange(400), 8)
    random = np.random.default_rng(0)
    a, b = random.standard_normal((2, len(groups)))
    expression = total_of("2*a + b + 100*c")
    c = groups.astype(float)  # differs between groups alone: explains nothing
    found = scores(2 * a + b + 100 * c, a=a, b=b, c=c)
    shares = explained_shares(found, expression, groups)
    assert shares["a"] == pytest.approx(0.8, abs=0.02)
    assert shares["b"] == pytest.approx(0.2, abs=0.02)
    assert shares["c"] == pytest.approx(0)


def test_gated_and_missing_are_counted_by_reason() -> None:
    found = scores(np.array([0.0, NAN, 1, 0]), a=np.array([NAN, NAN, 1, NAN]))
    found.gated[[0, 3]] = True
    found.reasons[0] = {"a": "gated by sane: -50.2 dBFS"}
    found.reasons[1] = {"a": "no voice", "total": "needs a: no voice"}
    found.reasons[3] = {"a": "gated by sane: -61 dBFS"}
    assert reasons_of(found) == {
        "a": {"gated by sane: # dBFS": 2, "no voice": 1},
        "total": {"gated by sane: # dBFS": 2, "needs a: no voice": 1},
    }


def test_drift_and_slices() -> None:
    steps = np.repeat(np.arange(1, 7), 4)
    data = clip_set(np.repeat(np.arange(6), 4), steps)
    column = steps + np.tile([0.0, 0.1, 0.2, 0.3], 6)
    data.clips[:4] = [Clip(c.audio, 16000, "[slow] a", "a") for c in data.clips[:4]]
    found = diagnose(data, scores(column, a=column), total_of("a"), (), {"duration": column})
    drift = found.drift[0]
    assert drift.steps == (1, 2, 3, 4, 5, 6)
    assert drift.tau == pytest.approx(1)
    assert drift.p < 0.01
    assert {one.name: one.clips for one in found.slices} == {"no vocal tag": 20, "tag [slow]": 4}
    assert found.nuisance["total"]["duration"] == pytest.approx(1)
    assert found.output("a").explained == pytest.approx(1)


def test_two_recipes() -> None:
    groups = np.array([0, 0, 0, 1, 1, 1])
    data = clip_set(groups)
    left, right = np.array([1.0, 2, 3, 1, 2, 3]), np.array([1.0, 2, 3, 3, 2, 1])
    found = compare_recipes(data, scores(left), scores(right), ("l", "r"))
    assert found.rank_correlation == pytest.approx(0)
    assert found.sign_changes == pytest.approx(2 / 6)
    assert found.other_best == 0.5
    assert found.best_of == 3
    assert {mover.clip for mover in found.movers} == {"3", "5"}
    same = compare_recipes(data, scores(left), scores(2 * left), ("l", "r"))
    assert (same.rank_correlation, same.sign_changes, same.other_best) == (pytest.approx(1), 0, 0)


@given(st.integers(1, 500), st.integers(1, 500))
def test_even_places(count: int, wanted: int) -> None:
    places = spread_evenly(count, wanted)
    assert len(places) == min(count, wanted)
    assert places == sorted(set(places))
    assert set(places) <= set(range(count))
