"""How far the sampler that made a step's rollouts is from the learner that trains on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rl.errors import StaleRolloutError
from rl.policy.likelihood import Likelihood
from rl.trainer.objective import OldLogprobs
from rollouts.types import Rollout

ARS = ("slow", "fast")


def stale_share(rollouts: Sequence[Rollout], version: int, corrected: bool) -> float:
    """Share of ``rollouts`` that another policy than ``version``, the learner's, has sampled.

    Raises `StaleRolloutError` when there are any and the loss isn't ``corrected`` for them.
    """
    others = [rollout.policy_version for rollout in rollouts if rollout.policy_version != version]
    if others and not corrected:
        raise StaleRolloutError(
            f"step {version}: {len(others)} of {len(rollouts)} rollouts were sampled by policy version "
            f"{min(others)}, the learner's is {version}: the weights didn't reach the engine; to train on "
            "older rollouts, set trainer.importance_cap"
        )
    return len(others) / len(rollouts)


def mismatch_sums(learner: Likelihood, sampler: OldLogprobs) -> dict[str, Tensor]:
    """Sums over the sampled codes of a batch, for `mismatch_metrics`; those named ``max_`` are maxima.

    ``learner``: log-probs with the weights that the rollouts were to be sampled with. float64 scalars.
    """
    sums: dict[str, Tensor] = {}
    for ar, mask in (("slow", learner.slow_mask), ("fast", learner.frame_mask)):
        difference = (getattr(learner, ar).detach() - getattr(sampler, ar))[mask].double().flatten()
        weights = difference.exp()
        sums[f"sampled_{ar}"] = torch.tensor(difference.numel(), device=difference.device)
        sums[f"gap_{ar}"] = difference.abs().sum()
        sums[f"max_gap_{ar}"] = difference.abs().amax() if len(difference) else difference.sum()
        sums[f"weight_{ar}"] = weights.sum()
        sums[f"weight_squared_{ar}"] = weights.square().sum()
    return sums


def mismatch_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Mean and largest ``|log learner - log sampler|`` of a code, and the effective sample size, for each AR.

    The last is ``(sum w)^2 / (n sum w^2)`` with ``w = learner / sampler`` of each code (Kish 1965; Kong, Liu
    and Wong 1994): 1 where both agree, towards 0 where a few codes hold all the weight. NaN without codes.
    """
    metrics = {}
    for ar in ARS:
        count = sums[f"sampled_{ar}"]
        metrics[f"learner/mismatch_mean_{ar}"] = sums[f"gap_{ar}"] / count if count else float("nan")
        metrics[f"learner/mismatch_max_{ar}"] = sums[f"max_gap_{ar}"] if count else float("nan")
        metrics[f"learner/ess_{ar}"] = (
            sums[f"weight_{ar}"] ** 2 / (count * sums[f"weight_squared_{ar}"]) if count else float("nan")
        )
    return metrics
