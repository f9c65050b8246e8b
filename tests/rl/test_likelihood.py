"""The learner's log-probs: several turns in one sequence, and which loss reaches which AR."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rl.policy import DualARForCausalLM
from rl.policy.likelihood import likelihood_of_turns
from rl.policy.loading import load_policy
from rl.policy.prompts import prompt_rows
from rl.policy.turns import turns_of
from rl.trainer.objective import ObjectiveSettings, OldLogprobs, dual_ar_loss
from rollouts.types import Prompt, Reference, Rollout, Turn
from tests.one_turn import likelihood
from tests.step_audio import make_policy

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"
CODES = np.random.Generator(np.random.Philox(key=1)).integers(0, 32, (9, 10))


@pytest.fixture(scope="module", params=["all", "first"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    if request.param == "all":
        return load_policy(str(GOLDEN))
    return load_policy(str(make_policy(tmp_path_factory.mktemp("policy"), books=10, size=32)))


def rollout(turns: tuple[Turn, ...], frames: int, end: float | None) -> Rollout:
    return Rollout(
        prompt=Prompt("p", "<|speaker:0|>A.<|speaker:1|>B.<|speaker:0|>C.", "a b c"),
        sample_index=0, seed=0, codes=CODES[:frames], logprobs=np.zeros((frames, 10), np.float32),
        end_logprob=end, finish_reason="eos", policy_version=0, turns=turns,
    )  # fmt: skip


def test_turns_in_one_sequence_are_as_likely_as_one_by_one(loaded) -> None:  # type: ignore[no-untyped-def]
    """The second turn of the first sample was cut, the second turn of the second sample is empty."""
    model, tokenizer = loaded
    long = (Turn("A.", 3, -1.0), Turn("B.", 2, None), Turn("C.", 4, -1.0))
    short = (Turn("A.", 1, -1.0), Turn("B.", 0, -1.0))
    single = rollout((), 2, None)
    samples = [rollout(long, 9, -1.0), rollout(short, 1, -1.0), single]
    with torch.no_grad():
        together = likelihood_of_turns(model, [turns_of(s, tokenizer, model.config) for s in samples], 0.7)
    assert together.slow.shape == (3, 11)
    assert together.slow_mask.sum(1).tolist() == [11, 3, 2]
    assert together.frame_mask.sum(1).tolist() == [9, 1, 2]
    for b, turns in enumerate((long, short, (Turn(single.prompt.text, 2, None),))):
        slow, fast, history, at = [], [], [], 0
        for turn in turns:
            codes = CODES[at : at + turn.frames]
            at += turn.frames
            prompt = Prompt("p", turn.text, "", (), {}, tuple(history))
            history.append(Reference(turn.text, codes))
            with torch.no_grad():
                alone = likelihood(
                    model,
                    [prompt_rows(prompt, tokenizer, model.config)],
                    [torch.from_numpy(codes)],
                    [turn.end_logprob is not None],
                    0.7,
                )
            slow.append(alone.slow[alone.slow_mask])
            fast.append(alone.fast[alone.frame_mask])
        mine = together.slow[b][together.slow_mask[b]], together.fast[b][together.frame_mask[b]]
        torch.testing.assert_close(mine, (torch.cat(slow), torch.cat(fast)), atol=1e-5, rtol=0)


def test_detached_hidden_states_keep_the_fast_loss_out_of_the_slow_ar(loaded) -> None:  # type: ignore[no-untyped-def]
    model, tokenizer = loaded
    turns = [turns_of(rollout((), 5, -1.0), tokenizer, model.config)]
    reached = {}
    for detach in (False, True):
        model.zero_grad()
        likelihood_of_turns(model, turns, 1.0, detach).fast.sum().backward()
        reached[detach] = (grad_norm(model, "text_model"), grad_norm(model, "audio_decoder.layers"))
    assert reached[False][0] > 1e-3
    assert reached[True][0] == 0
    assert reached[True][1] == pytest.approx(reached[False][1], rel=1e-5)


@pytest.mark.parametrize("detach", [False, True])
def test_a_frozen_fast_ar_leaves_the_slow_ar_to_train(loaded, detach: bool) -> None:  # type: ignore[no-untyped-def]
    """Its log-probs go into the loss; they reach the slow AR through it unless they are detached."""
    model, tokenizer = copy.deepcopy(loaded[0]), loaded[1]
    model.audio_decoder.requires_grad_(False)
    turns = [turns_of(rollout((), 5, -1.0), tokenizer, model.config)]
    settings = ObjectiveSettings(gamma=1.0, beta=0.0, epsilon=0.2, epsilon_high=0.2, normaliser=5.0)
    grads = {}
    for part in ("both", "slow"):
        model.zero_grad()
        new = likelihood_of_turns(model, turns, 1.0, detach)
        old = OldLogprobs(new.slow.detach(), new.fast.detach())
        used = settings if part == "both" else replace(settings, gamma=0.0)
        dual_ar_loss(new, old, torch.tensor([1.0]), used)[0].backward()
        grads[part] = grad_norm(model, "text_model")
    assert grads["slow"] > 0
    assert (grads["both"] == grads["slow"]) is detach
    assert grad_norm(model, "audio_decoder") == 0


def grad_norm(model: DualARForCausalLM, prefix: str) -> float:
    grads = [p.grad for name, p in model.named_parameters() if name.startswith(prefix) and p.grad is not None]
    return float(sum(grad.square().sum() for grad in grads))
