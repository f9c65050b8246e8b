"""The benchmarks' command, and that the learner's baseline does the same step as the learner."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rl.policy.loading import load_policy
from rl.policy.prompts import prompt_rows
from rollouts.noise import uniforms
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, SamplingParams
from scripts import bench
from scripts.benchmarks import learner
from scripts.benchmarks.loop import Products, sample

POLICY = Path(__file__).parent / "rl" / "fixtures" / "s2_tiny"


@pytest.mark.parametrize("part", ["learner", "rewards"])
def test_each_part_explains_itself(
    part: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench.py", part, "--help"])
    with pytest.raises(SystemExit, match="0"):
        bench.main()
    assert f"usage: bench.py {part}" in capsys.readouterr().out


def test_the_plain_step_has_our_loss_and_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    small = {"dim": 32, "n_head": 2, "n_local_heads": 2, "head_dim": 16, "intermediate_size": 48}
    step = {"SIZES": small, "SAMPLES": 5, "FRAMES": (3, 9), "PROMPT": 7, "PLAIN_BATCH": 3}
    for name, value in step.items():
        monkeypatch.setattr(learner, name, value)
    samples, sampler, advantages = learner.make_samples()
    losses, gradients = [], []
    for ours in (True, False):
        peft = learner.make_policy().train()
        run = learner.our_gradient if ours else learner.plain_gradient
        losses.append(run(peft, samples, sampler, advantages, 20 if ours else False))
        gradients.append(torch.cat([p.grad.flatten() for p in peft.parameters() if p.requires_grad]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    largest = gradients[0].abs().max()
    assert largest > 0
    torch.testing.assert_close(gradients[0] / largest, gradients[1] / largest, atol=1e-5, rtol=0)


def test_the_plain_loop_samples_what_the_engine_does() -> None:
    model, tokenizer = load_policy(str(POLICY))
    prompt = Prompt("long", "A much longer line, with more to say.", "")
    rows = prompt_rows(prompt, tokenizer, model.config)
    rollouts = TorchEngine(model, tokenizer).generate([prompt], 4, SamplingParams(max_frames=20), seed=7)
    assert {rollout.finish_reason for rollout in rollouts} == {"eos", "length"}
    for rollout in rollouts:
        noise = uniforms(7, prompt.id, rollout.sample_index, 20, model.config.num_codebooks)
        np.testing.assert_array_equal(sample(model, rows, torch.from_numpy(noise)), rollout.codes)


def test_the_products_are_those_of_a_frame() -> None:
    """Each weight of the fast AR as often as it has positions; of the slow head what may be sampled."""
    model, _ = load_policy(str(POLICY))
    config, fast = model.config, model.audio_decoder

    def count(layers: torch.nn.Module) -> int:
        return sum(p.numel() for p in layers.parameters() if p.dim() == 2)

    weights = count(model.text_model.model.layers) + (config.semantic_size + 1) * config.text_config.dim
    weights += config.num_codebooks * count(fast.layers) + (config.num_codebooks - 1) * count(fast.output)
    assert Products(model, 3).flops() == 2 * 3 * weights
