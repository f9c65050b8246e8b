"""What sampler and learner must agree on: the support, temperature and dtype of both ARs' softmax.

Slow: the semantic ids and the end token. Fast: ``[0, residual_codebook_size)``. Logits are cast to fp32,
divided by the temperature, then normalised over that support only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from trl.kernels import ChunkedLogProbFunction

from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM
from rl.policy.packing import pack
from rl.policy.turns import TurnRows

LOGITS_AT_ONCE = 1024
"""Columns of logits that the learner holds at a time, of at most 4096 rows (TRL's): 16 MiB in fp32."""


def slow_support(config: DualARConfig, device: torch.device | str = "cpu") -> Tensor:
    """Token ids the slow AR may emit: the semantic ids in order, then the end token last."""
    ids = [*range(config.semantic_start_token_id, config.semantic_end_token_id + 1), int(config.eos_token_id)]
    return torch.tensor(ids, device=device)


def slow_log_softmax(model: DualARForCausalLM, hidden: Tensor, temperature: float) -> Tensor:
    """Log-probs over the slow support ``[..., semantic_size + 1]``: the semantic codes, then the end."""
    logits = model.slow_logits(hidden, slow_support(model.config, hidden.device))
    return F.log_softmax(logits.float() / temperature, -1)


def fast_log_softmax(logits: Tensor, config: DualARConfig, temperature: float) -> Tensor:
    """Log-probs over the codes the codec knows, from fast logits ``[..., codebook_size]``."""
    return F.log_softmax(logits[..., : config.residual_codebook_size].float() / temperature, -1)


def chosen_logprobs(
    hidden: Tensor, head: Tensor, chosen: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Log-probs of ``chosen`` and entropies of the softmax over ``hidden @ head.T``: fp32, shaped like it.

    ``hidden``: ``[..., dim]``; ``head``: the rows of the support ``[V, dim]``; ``chosen``: places in it
    ``[...]``. Logits come in tiles, forward and again backward: no tensor has a row for each position and a
    column for each of V.
    """
    states, places = hidden.flatten(0, -2), chosen.flatten()
    logprobs, entropy, *_ = ChunkedLogProbFunction.apply(
        states, head, None, places, temperature, LOGITS_AT_ONCE, None, 1.0, ("entropy",)
    )
    return logprobs.view(chosen.shape), entropy.view(chosen.shape)


@dataclass
class Likelihood:
    """Log-probs and entropies (nats) of a padded batch of sampled generations.

    ``slow``, ``slow_entropy``: ``[B, S]``, what the slow AR sampled, in order: a turn's first codes, then its
    end token where it ended. ``fast``, ``fast_entropy``: ``[B, T, K - 1]``, the frames of all turns. Zero
    where ``slow_mask`` / ``frame_mask`` is False.
    """

    slow: Tensor
    slow_entropy: Tensor
    slow_mask: Tensor
    fast: Tensor
    fast_entropy: Tensor
    frame_mask: Tensor


def likelihood_of_turns(
    model: DualARForCausalLM,
    samples: Sequence[Sequence[TurnRows]],
    temperature: float,
    detach_hidden: bool = False,
) -> Likelihood:
    """Teacher-forced log-probs of samples of one turn or several.

    One forward of the slow AR over all samples without padding, prompts that are equal read once, and one of
    the fast AR over their frames, with ``detach_hidden`` on hidden states without gradient, so that nothing
    of its log-probs reaches the slow AR.
    """
    config = model.config
    packed = pack(samples, config).to(model.device)
    states = packed.states(model(packed.rows, packed.positions, packed.packing).hidden)
    head = model.slow_head(slow_support(config, model.device))
    slow, slow_entropy = chosen_logprobs(states, head, packed.targets, temperature)

    of_frames = states[packed.of_frame]
    fast_states = model.fast_hidden(of_frames.detach() if detach_hidden else of_frames, packed.codes)
    head = model.audio_decoder.output.weight[: config.residual_codebook_size]
    fast, fast_entropy = chosen_logprobs(fast_states, head, packed.codes[:, 1:], temperature)
    return Likelihood(
        _scatter(slow, packed.slow_mask),
        _scatter(slow_entropy, packed.slow_mask),
        packed.slow_mask,
        _scatter(fast, packed.frame_mask),
        _scatter(fast_entropy, packed.frame_mask),
        packed.frame_mask,
    )


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    out = values.new_zeros(*mask.shape, *values.shape[1:])
    out[mask] = values
    return out
