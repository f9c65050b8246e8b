"""A replay repeats a run's losses and weights, and trains on other rewards without sampling."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rl.cli.train import main
from rl.config import load_config
from rl.errors import ConfigError, RunFolderError
from rl.metrics import read_metrics
from rl.trainer.replay import largest_gap, replay
from rl.trainer.run import train

SAME = "learner/loss", "learner/grad_norm", "learner/entropy_slow", "reward/total/mean", "rollout/frames"


def adapter(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "checkpoint-3" / "adapter_model.safetensors")


@pytest.fixture
def run(configure) -> Path:
    return train(configure("evaluation.enabled=false"))


def test_without_changes_a_replay_repeats_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--replay", str(run)]) == 0
    assert "largest difference of a step's loss from the run's: 0" in capsys.readouterr().out
    again = run.parent / "run_replay"
    rows = zip(read_metrics(run / "metrics.jsonl"), read_metrics(again / "metrics.jsonl"), strict=True)
    for before, after in rows:
        assert [after[name] for name in SAME] == [before[name] for name in SAME]
    for name, tensor in adapter(run).items():
        assert torch.equal(tensor, adapter(again)[name])
    assert (again / "report.html").is_file()
    assert main(["--replay", str(run)]) == 2  # it isn't overwritten


def test_other_rewards(run: Path) -> None:
    config = load_config(run / "config.yaml", ["name=negative", "rewards.total=1 - length"])
    folder = replay(config, run)
    before, after = (read_metrics(side / "metrics.jsonl") for side in (run, folder))
    assert after[0]["reward/total/mean"] == pytest.approx(1 - before[0]["reward/total/mean"])
    assert after[0]["reward/length/mean"] == before[0]["reward/length/mean"]
    assert after[0]["learner/grad_norm"] == pytest.approx(before[0]["learner/grad_norm"], rel=1e-4)
    assert largest_gap(folder, run) > 0
    assert any(not torch.equal(tensor, adapter(folder)[name]) for name, tensor in adapter(run).items())


def test_what_does_not_fit_is_one_line(run: Path, tmp_path: Path) -> None:
    def config(*overrides: str):
        return load_config(run / "config.yaml", ["name=other", *overrides])

    with pytest.raises(RunFolderError, match=r"holds 3 training steps, fewer than trainer\.steps=9"):
        replay(config("trainer.steps=9"), run)
    with pytest.raises(ConfigError, match="leave both as in the run"):
        replay(config("rollouts.group_size=2"), run)
    assert main(["--replay", str(tmp_path)]) == 2
    assert main(["--replay", str(run), "--resume", str(run)]) == 2
