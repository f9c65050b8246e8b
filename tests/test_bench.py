"""The benchmarks' command, and that what they compare with does the same work as what they measure."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rl.config import load_config
from rl.parts import build_parts
from rl.policy.loading import load_policy
from rl.policy.prompts import prompt_rows
from rollouts.noise import uniforms
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, SamplingParams
from scripts import bench, soak
from scripts.benchmarks import learner, step
from scripts.benchmarks.loop import Products, sample

POLICY = Path(__file__).parent / "rl" / "fixtures" / "s2_tiny"


@pytest.mark.parametrize("part", ["learner", "rewards", "step"])
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


def test_all_ways_of_a_step_make_the_same_rollouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "length.yaml"
    recipe.write_text("nodes: {length: {type: duration}}\ntotal: length\n")
    sizes = ["rollouts.engine=torch", "rollouts.group_size=2", "rollouts.max_frames=4"]
    fixed = ["trainer.prompts_per_step=2", "trainer.learning_rate=1e-12", f"rewards={recipe}"]
    config = load_config("grpo_tiny", [*sizes, *fixed])
    config.evaluation.monitors = {}
    kept = []
    monkeypatch.setattr(step, "write_step", lambda _, record: kept.append(record))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with step.waiting_judge(0.0) as address:
        results = step.three_ways(config, build_parts(config), step.JUDGE | {"base_url": address}, 1)
    assert [record.step for record in kept] == [1, 2, 1, 2, 1, 2, 3]
    for record in kept[:6]:
        assert record.details[0]["judge"]["text"] == "a voice"
        expected = kept[record.step - 1]
        np.testing.assert_array_equal(record.total, expected.total)
        for one, other in zip(record.rollouts, expected.rollouts, strict=True):
            np.testing.assert_array_equal(one.codes, other.codes)
    phases = results["sequential"]["phases_s"]
    assert {"sampling", "decoding", "reward length", "reward judge", "learner"} < phases.keys()
    assert sum(phases.values()) <= 1.01 * results["sequential"]["step_s"]


def test_a_steps_time_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    watch = step.Watch(
        [0.0, 10.0, 14.0, 20.0, 99.0], [0.0, 9.0, 13.0, 16.0, 17.0], {"learner": [9, 1, 2, 3, 9]}
    )
    result = watch.result(overlapping=True)
    assert (result["step_s"], result["phases_s"]) == (6.0, {"learner": 2})  # of 10, 4 and 6; of 1, 2 and 3
    assert result["idle_share"] == 0.55  # of 0.55, 0.5 and 0.75


def test_the_slope_of_memory_by_hand() -> None:
    steady = [100.0 + 0.5 * (i % 2) for i in range(200)]
    assert soak.slope(steady) == (0.0, 0.0, 0.0)
    growing = [100 + i / 64 for i in range(200)]  # 16 KiB a step
    assert soak.slope(growing) == pytest.approx((16.0, 16.0, 16.0))
