"""What sampler and learner must agree on: the support, temperature and dtype of both ARs' softmax.

Slow: the semantic ids and the end token. Fast: ``[0, residual_codebook_size)``. Logits are cast to fp32,
divided by the temperature, then normalised over that support only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM
from rl.policy.prompts import code_rows


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


@dataclass
class Likelihood:
    """Log-probs and entropies (nats) of a padded batch of sampled generations.

    ``slow``, ``slow_entropy``: ``[B, T + 1]``, position t the code of frame t, position ``T_b`` the end
    token of a sample that ended. ``fast``, ``fast_entropy``: ``[B, T, K - 1]``. Zero where ``slow_mask`` /
    ``frame_mask`` is False.
    """

    slow: Tensor
    slow_entropy: Tensor
    slow_mask: Tensor
    fast: Tensor
    fast_entropy: Tensor
    frame_mask: Tensor


def likelihood(
    model: DualARForCausalLM,
    prompts: list[Tensor],
    codes: list[Tensor],
    ended: list[bool],
    temperature: float,
) -> Likelihood:
    """Teacher-forced log-probs of ``codes[b]`` ``[T_b, K]`` after prompts ``[1 + K, P_b]``.

    One padded forward of the slow AR; the fast AR runs over valid frames only.
    """
    config, device = model.config, model.device
    batch, frames = len(codes), max(len(c) for c in codes)
    books = config.num_codebooks
    longest = max(p.shape[1] + len(c) for p, c in zip(prompts, codes, strict=True))
    rows = torch.zeros(batch, 1 + books, longest, dtype=torch.long)
    padded = torch.zeros(batch, frames, books, dtype=torch.long)
    source = torch.zeros(batch, frames + 1, dtype=torch.long)
    frame_mask = torch.zeros(batch, frames, dtype=torch.bool)
    slow_mask = torch.zeros(batch, frames + 1, dtype=torch.bool)
    targets = torch.zeros(batch, frames + 1, dtype=torch.long)
    for b, (prompt, code, end) in enumerate(zip(prompts, codes, ended, strict=True)):
        first, length = prompt.shape[1], len(code)
        rows[b, :, :first] = prompt
        rows[b, :, first : first + length] = code_rows(code.cpu().numpy(), config)
        padded[b, :length] = code
        frame_mask[b, :length] = True
        slow_mask[b, : length + end] = True
        source[b, : length + 1] = torch.arange(first - 1, first + length)
        targets[b, :length] = code[:, 0]
        if end:
            targets[b, length] = config.semantic_size
    rows, padded, source, frame_mask, slow_mask, targets = (
        t.to(device) for t in (rows, padded, source, frame_mask, slow_mask, targets)
    )
    hidden = model(rows).hidden
    hidden = hidden.gather(1, source[..., None].expand(-1, -1, hidden.shape[-1]))

    slow_all = slow_log_softmax(model, hidden[slow_mask], temperature)
    slow = _scatter(slow_all.gather(1, targets[slow_mask][:, None])[:, 0], slow_mask)
    slow_entropy = _scatter(-(slow_all.exp() * slow_all).sum(-1), slow_mask)

    logits = model.fast_logits(hidden[:, :-1][frame_mask], padded[frame_mask])
    fast_all = fast_log_softmax(logits, config, temperature)
    chosen = padded[frame_mask][:, 1:]
    fast = _scatter(fast_all.gather(2, chosen[..., None])[..., 0], frame_mask)
    fast_entropy = _scatter(-(fast_all.exp() * fast_all).sum(-1), frame_mask)
    return Likelihood(slow, slow_entropy, slow_mask, fast, fast_entropy, frame_mask)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    out = values.new_zeros(*mask.shape, *values.shape[1:])
    out[mask] = values
    return out
