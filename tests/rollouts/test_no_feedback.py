"""Policies without feedback: the fast AR samples afterwards, and nothing of it depends on the batch."""

from __future__ import annotations

import numpy as np
import pytest

from rl.policy.loading import load_policy
from rollouts import depth, torch_engine
from rollouts.depth import in_batches
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, Reference, SamplingParams
from tests.rollouts.vllm_cases import assert_learner_agrees, assert_same_rollouts
from tests.step_audio import make_policy

VOICE = np.random.Generator(np.random.Philox(key=3)).integers(0, 32, (7, 16))
PROMPTS = [
    Prompt("short", "Hi.", "hi", (), {"role": "A child.", "instruction": "Whisper."}),
    Prompt("cloned", "Hello there, all of you.", "hello", (Reference("Some words.", VOICE),)),
]
SAMPLING = SamplingParams(temperature=0.8, max_frames=40)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    folder = make_policy(tmp_path_factory.mktemp("step_audio"), size=32)
    return TorchEngine(*load_policy(str(folder)))


def test_sampler_and_learner_agree_on_every_token(engine: TorchEngine) -> None:
    rollouts = engine.generate(PROMPTS, 8, SAMPLING, seed=5)
    assert {r.finish_reason for r in rollouts} == {"eos", "length"}
    assert len({r.codes[:, 1:].tobytes() for r in rollouts}) == 16
    assert_learner_agrees(engine.model, engine.tokenizer, rollouts, 0.8)


def test_a_sample_does_not_change_with_its_batch(
    engine: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither with the samples beside it, nor with the frames that the fast AR gets at once."""
    together = engine.generate(PROMPTS, 4, SAMPLING, seed=1)
    for module in (depth, torch_engine):
        monkeypatch.setattr(module, "FRAMES_AT_ONCE", 7)
    alone = TorchEngine(engine.model, engine.tokenizer, batch_size=1)
    assert_same_rollouts(together, alone.generate(PROMPTS, 4, SAMPLING, seed=1))


def test_rollouts_come_before_all_are_sampled(engine: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth, "FRAMES_AT_ONCE", 1)
    steps = 0

    def count(*_: object) -> None:
        nonlocal steps
        steps += 1

    hook = engine.model.register_forward_hook(count)
    came = [(steps, r.finish_reason) for r in engine.stream(PROMPTS, 8, SAMPLING, seed=5)]
    hook.remove()
    assert came[0][0] < came[-1][0] == steps
    assert (came[0][1], came[-1][1]) == ("eos", "length")


def test_batches_are_full_of_frames_but_for_the_last() -> None:
    lengths = [1000, 23, 1, 0, 2000, 5]
    assert list(in_batches(lengths, int)) == [[1000, 23, 1], [0, 2000], [5]]
    assert list(in_batches([], int)) == []
