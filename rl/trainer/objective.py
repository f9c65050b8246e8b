"""The loss as plain functions of tensors: group advantages, clipped ratios, importance weights, the KL.

Two choices are ours, as no paper of Fish Audio spells them out. Both ARs' losses are divided by the same
constant, rollouts times the longest allowed number of frames, so that with gamma = 1 the gradient is that of
the whole frame's log-prob (slow plus the sum of fast). And the clipping is per code, not per frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rl.policy.likelihood import Likelihood


def group_advantages(rewards: Tensor, group_size: int) -> Tensor:
    """``reward - mean of its group``, without a standard deviation (Dr. GRPO, arXiv:2503.20783, eq. 3).

    ``rewards``: ``[N]``, group by group; NaN is missing. A missing reward is left out of its group's mean
    and its advantage stays NaN; the only present reward of a group gets 0. Returns ``[N]``. Raises
    ValueError when N is no multiple of ``group_size``.
    """
    if len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards aren't whole groups of {group_size}")
    groups = rewards.view(-1, group_size)
    return (groups - groups.nanmean(1, keepdim=True)).flatten()


def flat_groups(rewards: Tensor, group_size: int, min_std: float) -> Tensor:
    """Which rollouts are of a group whose rewards' standard deviation is below ``min_std``: bool ``[N]``.

    ``rewards`` as in `group_advantages`; the sample standard deviation (n - 1) of those present. A group with
    fewer than two has none and isn't flat. StepAudio 3 Gen leaves such groups out (below 0.02), as their
    differences are the judge's noise.
    """
    groups = rewards.view(-1, group_size)
    present = (~groups.isnan()).sum(1)
    squares = (groups - groups.nanmean(1, keepdim=True)).square().nansum(1)
    std = (squares / (present - 1)).sqrt()
    return ((present > 1) & (std < min_std)).repeat_interleave(group_size)


def truncated_importance(learner: Tensor, sampler: Tensor, mask: Tensor, cap: float) -> Tensor:
    """``min(learner / sampler, cap)`` of each code, from log-probs ``[B, ...]``; 1 where ``mask`` is False.

    Truncated importance sampling (Ionides 2008; IMPALA, arXiv:1802.01561, rho in eq. 1), token by token: it
    makes the expectation over the sampler's codes one over the learner's, with bounded variance. A product
    over a whole utterance would have none of its weights near 1. Carries no gradient.
    """
    return torch.exp(torch.where(mask, learner - sampler, 0.0)).clamp_max(cap).detach()


@dataclass(frozen=True)
class ClippedLoss:
    """``loss``: scalar. ``clipped``: bool like the log-probs, True where clipping cut the gradient."""

    loss: Tensor
    clipped: Tensor


def policy_loss(
    new: Tensor,
    old: Tensor,
    advantages: Tensor,
    mask: Tensor,
    epsilon: float,
    epsilon_high: float,
    normaliser: float,
    importance: Tensor | None = None,
) -> ClippedLoss:
    """PPO's clipped surrogate (arXiv:1707.06347, eq. 7), negated, summed over codes, over a constant.

    ``new``, ``old``: log-probs ``[B, ...]``; ``mask``: bool of that shape, True where a code was sampled;
    ``advantages``: ``[B]``, without NaN. ``normaliser`` is the same whatever was sampled, so that long and
    short samples weigh alike per code (Dr. GRPO). ``importance``: weights of the codes, like ``new``.
    """
    advantage = advantages.view(-1, *[1] * (new.dim() - 1)).expand_as(new)
    ratio = torch.exp(torch.where(mask, new - old, 0.0))
    bounded = ratio.clamp(1 - epsilon, 1 + epsilon_high)
    surrogate = torch.minimum(ratio * advantage, bounded * advantage)
    clipped = mask & (bounded * advantage < ratio * advantage)
    if importance is not None:
        surrogate = surrogate * importance
    return ClippedLoss(-(surrogate * mask).sum() / normaliser, clipped)


def kl_k3(new: Tensor, reference: Tensor) -> Tensor:
    """Unbiased, non-negative estimate of KL(new || reference) of each sampled code.

    ``exp(d) - d - 1`` with ``d = reference - new``, "k3" in http://joschu.net/blog/kl-approx.html.
    """
    difference = reference - new
    return torch.expm1(difference) - difference


@dataclass(frozen=True)
class OldLogprobs:
    """Log-probs from before the step, laid out as in `Likelihood`: ``slow`` ``[B, S]``, ``fast``
    ``[B, T, K - 1]``."""

    slow: Tensor
    fast: Tensor


@dataclass(frozen=True)
class ObjectiveSettings:
    """The weights of `dual_ar_loss`. ``normaliser``: rollouts of the whole step times `max_frames`.

    ``importance_cap``: None leaves the sampler's log-probs in the ratio, uncorrected.
    """

    gamma: float
    beta: float
    epsilon: float
    epsilon_high: float
    normaliser: float
    importance_cap: float | None = None


def dual_ar_loss(
    new: Likelihood,
    sampler: OldLogprobs,
    advantages: Tensor,
    settings: ObjectiveSettings,
    reference: Likelihood | None = None,
    start: OldLogprobs | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """``L_slow + gamma * L_fast``, each the clipped loss plus ``beta`` times the KL to ``reference``.

    The ratios are ``new`` over ``sampler``. With an ``importance_cap`` they are ``new`` over ``start``, the
    learner's own log-probs before its first update on these rollouts (None: this is that pass), and each
    code's surrogate is weighted by `truncated_importance` of ``start`` over ``sampler``: what the sampler's
    number format or age does is corrected, what the learner does is clipped.

    ``advantages``: ``[B]``; a sample whose advantage is NaN has no part in it. Returns the scalar loss and
    sums for the metrics: ``count_<ar>``, ``entropy_<ar>``, ``clip_<ar>`` and, with a reference, ``kl_<ar>``,
    with a cap ``capped_<ar>``, over the sampled codes of each AR that count.
    """
    present = ~advantages.isnan()
    advantages = advantages.nan_to_num(0.0)
    total = new.slow.new_zeros(())
    sums: dict[str, Tensor] = {}
    for ar, weight in (("slow", 1.0), ("fast", settings.gamma)):
        logprobs, entropy = getattr(new, ar), getattr(new, f"{ar}_entropy")
        mask = new.slow_mask if ar == "slow" else new.frame_mask[..., None].expand_as(logprobs)
        mask = mask & present.view(-1, *[1] * (mask.dim() - 1))
        old, importance = getattr(sampler, ar), None
        if settings.importance_cap is not None:
            began = logprobs.detach() if start is None else getattr(start, ar)
            importance = truncated_importance(began, old, mask, settings.importance_cap)
            sums[f"capped_{ar}"] = (mask & (importance >= settings.importance_cap)).sum()
            old = began
        part = policy_loss(
            logprobs,
            old,
            advantages,
            mask,
            settings.epsilon,
            settings.epsilon_high,
            settings.normaliser,
            importance,
        )
        loss = part.loss
        sums[f"count_{ar}"] = mask.sum()
        sums[f"entropy_{ar}"] = (entropy.detach() * mask).sum()
        sums[f"clip_{ar}"] = part.clipped.sum()
        if reference is not None:
            kl = (kl_k3(logprobs, getattr(reference, ar)) * mask).sum()
            loss = loss + settings.beta * kl / settings.normaliser
            sums[f"kl_{ar}"] = kl.detach()
        total = total + weight * loss
    return total, sums
