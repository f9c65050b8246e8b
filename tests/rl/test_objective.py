"""The objective against numbers worked out by hand."""

import math

import pytest
import torch

from rl.policy.likelihood import Likelihood
from rl.trainer.objective import (
    ObjectiveSettings,
    OldLogprobs,
    dual_ar_loss,
    flat_groups,
    group_advantages,
    kl_k3,
    policy_loss,
    truncated_importance,
)

NAN = math.nan


def test_advantage_is_the_reward_less_the_mean_of_its_group() -> None:
    rewards = torch.tensor([1.0, 2.0, 6.0, 0.5, 0.5, 0.5])
    assert group_advantages(rewards, 3).tolist() == [-2.0, -1.0, 3.0, 0.0, 0.0, 0.0]


def test_missing_rewards_stay_out_of_the_mean() -> None:
    rewards = torch.tensor([1.0, NAN, 3.0, NAN, NAN, 0.7, NAN, NAN, NAN])
    advantages = group_advantages(rewards, 3)
    torch.testing.assert_close(
        advantages, torch.tensor([-1.0, NAN, 1.0, NAN, NAN, 0.0, NAN, NAN, NAN]), equal_nan=True
    )


def test_a_group_of_16_with_one_missing_centres_over_15() -> None:
    rewards = torch.arange(16, dtype=torch.float64)
    rewards[3] = NAN
    advantages = group_advantages(rewards, 16)
    mean = (120 - 3) / 15
    expected = torch.tensor([i - mean for i in range(16)], dtype=torch.float64)
    expected[3] = NAN
    torch.testing.assert_close(advantages, expected, equal_nan=True)


def test_groups_must_be_whole() -> None:
    with pytest.raises(ValueError, match="whole groups"):
        group_advantages(torch.zeros(5), 2)


def test_flat_groups_by_hand() -> None:
    # standard deviations: 0.02, 0.0199, 0.1414 of the two that are there, none, none
    rewards = torch.tensor(
        [[0.48, 0.5, 0.52], [0.4801, 0.5, 0.5199], [0.1, NAN, 0.3], [NAN, 0.7, NAN], [NAN, NAN, NAN]],
        dtype=torch.float64,
    )
    assert flat_groups(rewards.flatten(), 3, 0.01999).view(5, 3).tolist() == [
        [False] * 3, [True] * 3, [False] * 3, [False] * 3, [False] * 3
    ]  # fmt: skip
    assert flat_groups(rewards.flatten(), 3, 0.2).view(5, 3)[:, 0].tolist() == [True] * 3 + [False] * 2
    assert not flat_groups(torch.zeros(6), 3, 0.0).any()


def test_clipped_loss_by_hand() -> None:
    ratios = torch.tensor([[1.5, 0.5], [1.5, 0.5]])
    new = ratios.log().requires_grad_()
    advantages = torch.tensor([2.0, -1.0])
    mask = torch.ones(2, 2, dtype=torch.bool)
    part = policy_loss(new, torch.zeros(2, 2), advantages, mask, 0.2, 0.3, 10.0)
    # A = 2: min(3, 2.6), min(1, 1.6); A = -1: min(-1.5, -1.3), min(-0.5, -0.8)
    assert part.loss.item() == pytest.approx(-(2.6 + 1.0 - 1.5 - 0.8) / 10)
    assert part.clipped.tolist() == [[True, False], [False, True]]
    part.loss.backward()
    # d(ratio * A)/d(log-prob) = ratio * A where it isn't clipped
    torch.testing.assert_close(new.grad, -torch.tensor([[0.0, 1.0], [-1.5, 0.0]]) / 10)


def test_masked_codes_have_no_part_even_when_they_hold_garbage() -> None:
    new = torch.tensor([[0.0, 1e4]], requires_grad=True)
    part = policy_loss(
        new, torch.zeros(1, 2), torch.tensor([3.0]), torch.tensor([[True, False]]), 0.2, 0.2, 1.0
    )
    assert part.loss.item() == -3.0
    part.loss.backward()
    assert new.grad is not None
    assert new.grad.tolist() == [[-3.0, 0.0]]


def test_kl_k3_is_zero_at_equality_and_matches_the_formula() -> None:
    assert kl_k3(torch.tensor(-1.3), torch.tensor(-1.3)).item() == 0.0
    expected = math.exp(0.5) - 0.5 - 1
    assert kl_k3(torch.tensor(-1.0), torch.tensor(-0.5)).item() == pytest.approx(expected)


def _likelihood(slow: torch.Tensor, fast: torch.Tensor) -> Likelihood:
    slow_mask = torch.tensor([[True, True, True], [True, False, False]])
    frame_mask = torch.tensor([[True, True], [True, False]])
    return Likelihood(
        slow, torch.full_like(slow, 0.5), slow_mask, fast, torch.full_like(fast, 0.25), frame_mask
    )


def test_dual_ar_loss_weighs_the_fast_ar_and_leaves_missing_samples_out() -> None:
    slow, fast = torch.zeros(2, 3), torch.zeros(2, 2, 4)
    new = _likelihood(slow.requires_grad_(), fast.requires_grad_())
    old = OldLogprobs(torch.zeros(2, 3), torch.zeros(2, 2, 4))
    settings = ObjectiveSettings(gamma=0.5, beta=0.0, epsilon=0.2, epsilon_high=0.2, normaliser=4.0)
    loss, sums = dual_ar_loss(new, old, torch.tensor([1.0, -2.0]), settings)
    # slow: 3 codes at 1, 1 code at -2; fast: 8 codes at 1, 4 at -2
    assert loss.item() == pytest.approx(-((3 - 2) + 0.5 * (8 - 8)) / 4)
    assert {name: float(value) for name, value in sums.items()} == {
        "count_slow": 4, "entropy_slow": 2.0, "clip_slow": 0,
        "count_fast": 12, "entropy_fast": 3.0, "clip_fast": 0,
    }  # fmt: skip

    loss, sums = dual_ar_loss(new, old, torch.tensor([1.0, NAN]), settings)
    assert loss.item() == pytest.approx(-(3 + 0.5 * 8) / 4)
    assert (float(sums["count_slow"]), float(sums["count_fast"])) == (3, 8)
    loss.backward()
    assert slow.grad is not None
    assert slow.grad[1].tolist() == [0.0, 0.0, 0.0]


def test_kl_is_added_to_both_ars_with_beta() -> None:
    new = _likelihood(torch.zeros(2, 3), torch.zeros(2, 2, 4))
    reference = _likelihood(torch.full((2, 3), 0.5), torch.full((2, 2, 4), -0.5))
    old = OldLogprobs(torch.zeros(2, 3), torch.zeros(2, 2, 4))
    settings = ObjectiveSettings(gamma=2.0, beta=0.1, epsilon=0.2, epsilon_high=0.2, normaliser=4.0)
    loss, sums = dual_ar_loss(new, old, torch.zeros(2), settings, reference)
    slow, fast = 4 * (math.exp(0.5) - 1.5), 12 * (math.exp(-0.5) - 0.5)
    assert float(sums["kl_slow"]) == pytest.approx(slow, rel=1e-5)
    assert float(sums["kl_fast"]) == pytest.approx(fast, rel=1e-5)
    assert loss.item() == pytest.approx(0.1 * (slow + 2 * fast) / 4, rel=1e-5)


def test_importance_is_truncated_and_carries_no_gradient() -> None:
    learner = torch.tensor([[0.5, 2.0, 4.0, 8.0]]).log().requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    weights = truncated_importance(learner, torch.zeros(1, 4), mask, 2.3)
    torch.testing.assert_close(weights, torch.tensor([[0.5, 2.0, 2.3, 1.0]]))
    assert not weights.requires_grad


def test_importance_weights_in_the_loss_by_hand() -> None:
    settings = ObjectiveSettings(
        gamma=0.5, beta=0.0, epsilon=0.2, epsilon_high=0.2, normaliser=4.0, importance_cap=2.0
    )
    advantages = torch.tensor([1.0, -2.0])
    # learner over sampler: slow 0.5, 1.5, 3 and 4; fast 1 throughout
    slow = torch.tensor([[0.5, 1.5, 3.0], [4.0, 9.0, 9.0]]).log().requires_grad_()
    sampler = OldLogprobs(torch.zeros(2, 3), torch.zeros(2, 2, 4))
    loss, sums = dual_ar_loss(_likelihood(slow, torch.zeros(2, 2, 4)), sampler, advantages, settings)
    # first pass: every ratio is 1, the weights are 0.5, 1.5, 2 and 2
    assert loss.item() == pytest.approx(-((0.5 + 1.5 + 2 - 2 * 2) + 0.5 * (8 - 8)) / 4, abs=1e-6)
    assert (float(sums["capped_slow"]), float(sums["capped_fast"]), float(sums["clip_slow"])) == (2, 0, 0)
    loss.backward()
    torch.testing.assert_close(slow.grad, -torch.tensor([[0.5, 1.5, 2.0], [-4.0, 0.0, 0.0]]) / 4)

    start = OldLogprobs(slow.detach(), torch.zeros(2, 2, 4))
    ratios = torch.tensor([[1.5, 1.1, 0.9], [1.5, 1.0, 1.0]])
    moved = _likelihood(slow.detach() + ratios.log(), torch.zeros(2, 2, 4))
    loss, sums = dual_ar_loss(moved, sampler, advantages, settings, start=start)
    # second pass: min(1.5, 1.2), 1.1, 0.9, and -2 * 1.5, which isn't clipped
    expected = 0.5 * 1.2 + 1.5 * 1.1 + 2 * 0.9 - 2 * 2 * 1.5
    assert loss.item() == pytest.approx(-(expected + 0.5 * (8 - 8)) / 4, abs=1e-6)
    assert float(sums["clip_slow"]) == 1
