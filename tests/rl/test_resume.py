"""A run that was interrupted anywhere ends in the same weights, rollouts and metrics as one that wasn't."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerState

from rl.config import save_resolved
from rl.errors import RunFolderError
from rl.metrics import read_metrics
from rl.schema import RunConfig
from rl.trainer import grpo
from rl.trainer.run import CHECKPOINTS, train
from rollouts.store import iter_steps

# 5 prompts, 2 a step: an epoch is 2 steps. A step is 2 optimiser steps of 2 micro-batches, one
# per prompt (some 70 tokens): 4 losses.
SETTINGS = (
    "trainer.steps=4",
    "trainer.num_iterations=2",
    "trainer.micro_batch_tokens=100",
    "trainer.save_every=1",
    "rollouts.group_size=2",
    "evaluation.enabled=false",
)
TIMES = {"time", "time/step_s", "time/wait_s", "time/rollout_s", "time/rewards_s", "rollout/frames_per_s"}
KILLED_AT_A_LOSS = """
import os, signal, sys
from rl.cli.train import main
from rl.trainer import grpo

losses, loss = [0], grpo.dual_ar_loss

def deadly(*args):
    losses[0] += 1
    if losses[0] == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    return loss(*args)

grpo.dual_ar_loss = deadly
sys.exit(main(sys.argv[2:]))
"""
Configure = Callable[..., RunConfig]


class Interruption(BaseException):
    """What no handler of the product catches."""


@pytest.fixture(scope="module")
def ends() -> dict[str, Any]:
    """Where the undisturbed run is kept for the module's tests."""
    return {}


@pytest.fixture
def whole(configure: Configure, ends: dict[str, Any]) -> Path:
    if not ends:
        ends["folder"] = train(configure(*SETTINGS, "name=whole"))
    return ends["folder"]


def assert_same_end(whole: Path, resumed: Path) -> None:
    last = Path(CHECKPOINTS, "checkpoint-8", "adapter_model.safetensors")
    weights, again = load_file(whole / last), load_file(resumed / last)
    assert weights.keys() == again.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, again[name]), name
    for left, right in zip(iter_steps(whole), iter_steps(resumed), strict=True):
        np.testing.assert_array_equal(left.total, right.total)
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            np.testing.assert_array_equal(a.codes, b.codes)
            np.testing.assert_array_equal(a.logprobs, b.logprobs)
            assert a.policy_version == b.policy_version == left.step
    rows = zip(read_metrics(whole / "metrics.jsonl"), read_metrics(resumed / "metrics.jsonl"), strict=True)
    for before, after in rows:
        for name in before.keys() - TIMES:
            assert before[name] == after[name], name


@pytest.mark.parametrize(
    ("losses", "checkpoint"),
    [
        pytest.param(2, None, id="first step: nothing is saved yet"),
        pytest.param(6, 2, id="mid-epoch, inside the accumulation window"),
        pytest.param(9, 4, id="at an epoch boundary"),
        pytest.param(16, 6, id="inside the window of the second iteration"),
    ],
)
def test_interrupted_before_a_loss(
    configure: Configure, whole: Path, monkeypatch: pytest.MonkeyPatch, losses: int, checkpoint: int | None
) -> None:
    loss, calls = grpo.dual_ar_loss, 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == losses:
            raise Interruption
        return loss(*args)

    config = configure(*SETTINGS, "name=cut")
    folder = Path(config.output_dir, "cut")
    monkeypatch.setattr(grpo, "dual_ar_loss", interrupted)
    with pytest.raises(Interruption):
        train(config)
    monkeypatch.undo()
    saved = [int(path.name.partition("-")[2]) for path in (folder / CHECKPOINTS).glob("checkpoint-*")]
    assert max(saved, default=None) == checkpoint
    train(config, resume=folder)
    assert_same_end(whole, folder)


def test_interrupted_while_a_checkpoint_is_written(
    configure: Configure, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = TrainerState.save_to_json

    def cut_short(state: TrainerState, path: str) -> None:
        if state.global_step == 4:
            Path(path).write_text('{"epoch": 1')
            raise Interruption
        save(state, path)

    config = configure(*SETTINGS, "name=cut")
    folder = Path(config.output_dir, "cut")
    monkeypatch.setattr(TrainerState, "save_to_json", cut_short)
    with pytest.raises(Interruption):
        train(config)
    monkeypatch.undo()
    train(config, resume=folder)
    assert_same_end(whole, folder)
    finished = (folder / "metrics.jsonl").read_text()
    train(config, resume=folder)
    assert (folder / "metrics.jsonl").read_text() == finished, "nothing is left to do"
    with pytest.raises(RunFolderError, match="differs"):
        train(configure(*SETTINGS, "name=cut", "trainer.gamma=0.5"), resume=folder)


def test_killed_in_the_middle_of_a_step(configure: Configure, whole: Path, tmp_path: Path) -> None:
    config = configure(*SETTINGS, "name=killed")
    file, folder = tmp_path / "killed.yaml", Path(config.output_dir, "killed")
    save_resolved(config, file)

    def command(program: str, *arguments: str) -> int:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
            check=False,
        ).returncode

    assert command(KILLED_AT_A_LOSS, "10", "--config", str(file)) == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1, 2]
    resume = "import sys; from rl.cli.train import main; sys.exit(main(sys.argv[1:]))"
    assert command(resume, "--resume", str(folder)) == 0
    assert_same_end(whole, folder)
