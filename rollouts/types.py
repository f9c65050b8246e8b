"""The records that flow from prompts to rollouts: shared by engines, store and learner."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

FinishReason = Literal["eos", "length"]


@dataclass(frozen=True)
class Reference:
    """A voice to clone or an earlier turn: what it says, and its codec codes ``[T, K]`` (int)."""

    text: str
    codes: np.ndarray


@dataclass(frozen=True)
class Prompt:
    """One thing to say.

    ``text`` may hold ``<|speaker:N|>`` and ``[tags]``; ``spoken`` is what an ASR should hear
    (the text without speaker and style tags). ``meta`` is free, JSON-able, and stored. ``history`` holds
    earlier turns of the same conversation, which the policy generated and now hears.
    """

    id: str
    text: str
    spoken: str
    references: tuple[Reference, ...] = ()
    meta: dict[str, Any] = field(default_factory=dict)
    history: tuple[Reference, ...] = ()


@dataclass(frozen=True)
class SamplingParams:
    """How to sample both ARs. ``temperature`` divides the fp32 logits; ``max_frames`` is the length stop."""

    temperature: float = 1.0
    max_frames: int = 128


@dataclass(frozen=True)
class Turn:
    """A part of a rollout: what was to be said, how many frames it has, and the log-prob of its end token,
    None where the length limit ended it."""

    text: str
    frames: int
    end_logprob: float | None


@dataclass
class Rollout:
    """One sampled generation, or several turns of one conversation.

    ``codes``: int64 ``[T, K]``, column 0 the semantic code. ``logprobs``: float32 ``[T, K]``, column 0
    of the slow AR, the others of the fast AR. ``end_logprob``: the slow AR's log-prob of the end token
    (``finish_reason == "eos"``), else None. The same (``seed``, prompt id, ``sample_index``) gives the
    same codes in any batch. ``policy_version`` counts the weight loads of the engine that sampled it.

    ``turns``: where the prompt was said turn by turn (`rollouts.turns`), all of them in order, else empty.
    Codes and log-probs are then those of all turns, ``end_logprob`` is the last one's, and ``finish_reason``
    is ``length`` when any turn was cut.
    """

    prompt: Prompt
    sample_index: int
    seed: int
    codes: np.ndarray
    logprobs: np.ndarray
    end_logprob: float | None
    finish_reason: FinishReason
    policy_version: int
    turns: tuple[Turn, ...] = ()
