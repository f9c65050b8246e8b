"""The benchmarks' command, and that the learner's baseline does the same step as the learner."""

from __future__ import annotations

import sys

import pytest
import torch

from scripts import bench
from scripts.benchmarks import learner


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
