"""Prompts and the two comparisons that every vLLM test makes."""

from __future__ import annotations

import numpy as np
import torch

from rl.policy.modeling import DualARForCausalLM
from rl.policy.prompts import prompt_rows
from rollouts.types import Prompt, Reference, Rollout
from tests.one_turn import likelihood

_DRAWN = np.random.Generator(np.random.Philox(key=3)).integers(0, 32, (2, 40, 10))
_DRAWN[1, :, 0] = _DRAWN[0, :, 0]  # the same first codes, and so the same tokens, with others beneath
PROMPTS = [
    Prompt("short", "Hi.", "hi"),
    Prompt("long", "<|speaker:0|>[slow] A much longer line, with a good deal more to say.", "a much longer"),
    Prompt("cloned", "Hello there.", "hello there", (Reference("Some words.", _DRAWN[0]),)),
    Prompt("other voice", "Hello there.", "hello there", (Reference("Some words.", _DRAWN[1]),)),
]


def assert_same_rollouts(mine: list[Rollout], theirs: list[Rollout]) -> None:
    """Equal codes and ends, log-probs within 1e-4."""
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.prompt.id, a.sample_index, a.seed) == (b.prompt.id, b.sample_index, b.seed)
        assert a.finish_reason == b.finish_reason
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
        assert (a.end_logprob is None) == (b.end_logprob is None)
        if a.end_logprob is not None:
            assert abs(a.end_logprob - b.end_logprob) < 1e-4


def assert_learner_agrees(
    model: DualARForCausalLM, tokenizer: object, rollouts: list[Rollout], temperature: float
) -> None:
    """Every log-prob within 1e-4 of a teacher-forced forward."""
    with torch.no_grad():
        result = likelihood(
            model,
            [prompt_rows(r.prompt, tokenizer, model.config) for r in rollouts],
            [torch.from_numpy(r.codes) for r in rollouts],
            [r.finish_reason == "eos" for r in rollouts],
            temperature,
        )
    for b, r in enumerate(rollouts):
        length = len(r.codes)
        np.testing.assert_allclose(result.slow[b, :length], r.logprobs[:, 0], atol=1e-4)
        np.testing.assert_allclose(result.fast[b, :length], r.logprobs[:, 1:], atol=1e-4)
        if r.end_logprob is not None:
            assert abs(result.slow[b, length].item() - r.end_logprob) < 1e-4
