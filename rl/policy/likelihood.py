"""What sampler and learner must agree on: the support, temperature and dtype of both ARs' softmax.

Slow: the semantic ids and the end token. Fast: ``[0, residual_codebook_size)``. Logits are cast to fp32,
divided by the temperature, then normalised over that support only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM
from rl.policy.prompts import code_rows, join_turns, turn_rows
from rollouts.types import Reference, Rollout, Turn


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


@dataclass(frozen=True)
class TurnRows:
    """A turn as the learner reads it: the rows ``[1 + K, P]`` before it (all of the prompt, or what stands
    between it and the turn before), its codes ``[T, K]``, and whether its end token was sampled."""

    read: Tensor
    codes: Tensor
    ended: bool


def turns_of(rollout: Rollout, tokenizer: PreTrainedTokenizerBase, config: DualARConfig) -> list[TurnRows]:
    """The turns of ``rollout``, one unless it was generated turn by turn. Raises what `prompt_rows` does."""
    codes = torch.from_numpy(rollout.codes)
    turns = rollout.turns or (Turn(rollout.prompt.text, len(codes), rollout.end_logprob),)
    said = codes.split([turn.frames for turn in turns])
    heard = [Reference(turn.text, part.numpy()) for turn, part in zip(turns, said, strict=True)]
    history = rollout.prompt.history
    whole = replace(rollout.prompt, text=turns[-1].text, history=(*history, *heard[:-1]))
    reads = turn_rows(whole, tokenizer, config)
    first = join_turns(reads[: len(history) + 1], rollout.prompt, config)
    return [
        TurnRows(read, part, turn.end_logprob is not None)
        for read, part, turn in zip([first, *reads[len(history) + 1 :]], said, turns, strict=True)
    ]


def sampled_logprobs(rollout: Rollout) -> tuple[Tensor, Tensor]:
    """The sampler's log-probs, in the order of `Likelihood`: slow ``[T + ends]``, fast ``[T, K - 1]``."""
    logprobs = torch.from_numpy(rollout.logprobs)
    turns = [(turn.frames, turn.end_logprob) for turn in rollout.turns]
    slow, at = [], 0
    for frames, end in turns or [(len(logprobs), rollout.end_logprob)]:
        slow += [logprobs[at : at + frames, 0], torch.tensor([] if end is None else [end])]
        at += frames
    return torch.cat(slow), logprobs[:, 1:]


def likelihood_of_turns(
    model: DualARForCausalLM, samples: list[list[TurnRows]], temperature: float, detach_hidden: bool = False
) -> Likelihood:
    """Teacher-forced log-probs of samples of one turn or several, each in one sequence.

    One padded forward of the slow AR; the fast AR runs over valid frames only, with ``detach_hidden`` on
    hidden states without gradient, so that nothing of its log-probs reaches the slow AR.
    """
    config, device = model.config, model.device
    batch, books = len(samples), config.num_codebooks
    frames = max(sum(len(turn.codes) for turn in turns) for turns in samples)
    tokens = frames + max(len(turns) for turns in samples)
    longest = max(sum(turn.read.shape[1] + len(turn.codes) for turn in turns) for turns in samples)
    rows = torch.zeros(batch, 1 + books, longest, dtype=torch.long)
    codes = torch.zeros(batch, frames, books, dtype=torch.long)
    frame_mask = torch.zeros(batch, frames, dtype=torch.bool)
    source = torch.zeros(batch, tokens, dtype=torch.long)
    targets = torch.zeros(batch, tokens, dtype=torch.long)
    slow_mask = torch.zeros(batch, tokens, dtype=torch.bool)
    starts_frame = torch.zeros(batch, tokens, dtype=torch.bool)
    for b, turns in enumerate(samples):
        row = frame = token = 0
        for turn in turns:
            read, length = turn.read.shape[1], len(turn.codes)
            sampled = length + turn.ended
            rows[b, :, row : row + read] = turn.read
            row += read
            rows[b, :, row : row + length] = code_rows(turn.codes.cpu().numpy(), config)
            codes[b, frame : frame + length] = turn.codes
            frame_mask[b, frame : frame + length] = True
            source[b, token : token + sampled] = torch.arange(row - 1, row - 1 + sampled)
            targets[b, token : token + sampled] = config.semantic_size
            targets[b, token : token + length] = turn.codes[:, 0]
            slow_mask[b, token : token + sampled] = True
            starts_frame[b, token : token + length] = True
            row, frame, token = row + length, frame + length, token + sampled
    rows, codes, frame_mask, source, targets, slow_mask, starts_frame = (
        t.to(device) for t in (rows, codes, frame_mask, source, targets, slow_mask, starts_frame)
    )
    hidden = model(rows).hidden[slow_mask.nonzero()[:, 0], source[slow_mask]]

    slow_all = slow_log_softmax(model, hidden, temperature)
    slow = _scatter(slow_all.gather(1, targets[slow_mask][:, None])[:, 0], slow_mask)
    slow_entropy = _scatter(-(slow_all.exp() * slow_all).sum(-1), slow_mask)

    of_frames = hidden[starts_frame[slow_mask]]
    logits = model.fast_logits(of_frames.detach() if detach_hidden else of_frames, codes[frame_mask])
    fast_all = fast_log_softmax(logits, config, temperature)
    chosen = codes[frame_mask][:, 1:]
    fast = _scatter(fast_all.gather(2, chosen[..., None])[..., 0], frame_mask)
    fast_entropy = _scatter(-(fast_all.exp() * fast_all).sum(-1), frame_mask)
    return Likelihood(slow, slow_entropy, slow_mask, fast, fast_entropy, frame_mask)


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    out = values.new_zeros(*mask.shape, *values.shape[1:])
    out[mask] = values
    return out
