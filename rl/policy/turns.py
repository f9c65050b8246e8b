"""A rollout as the learner reads it: what was read before each turn, what was sampled, and how likely."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.policy.configuration import DualARConfig
from rl.policy.prompts import join_turns, turn_rows
from rollouts.types import Reference, Rollout, Turn


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
