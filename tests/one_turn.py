"""The learner's log-probs of samples that were said at once."""

from __future__ import annotations

from torch import Tensor

from rl.policy.likelihood import Likelihood, likelihood_of_turns
from rl.policy.modeling import DualARForCausalLM
from rl.policy.turns import TurnRows


def likelihood(
    model: DualARForCausalLM,
    prompts: list[Tensor],
    codes: list[Tensor],
    ended: list[bool],
    temperature: float,
) -> Likelihood:
    """Teacher-forced log-probs of ``codes[b]`` ``[T_b, K]`` after prompts ``[1 + K, P_b]``."""
    turns = [[TurnRows(*turn)] for turn in zip(prompts, codes, ended, strict=True)]
    return likelihood_of_turns(model, turns, temperature)
