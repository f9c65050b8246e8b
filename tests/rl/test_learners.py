"""Several learner processes are as one: the same losses and weights, and checkpoints for any number of them."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rl.config import load_config, save_resolved
from rl.errors import ConfigError
from rl.metrics import read_metrics
from rl.schema import RunConfig
from rl.trainer.learners import Learners, joined
from rl.trainer.run import CHECKPOINTS, train
from rollouts.store import iter_steps

# 12 rollouts a step: 6, 3 or 2 micro-batches for one, two or three learners
SETTINGS = (
    "trainer.steps=4",
    "trainer.prompts_per_step=3",
    "trainer.micro_batch_size=2",
    "trainer.save_every=2",
    "trainer.beta=0.05",
    "evaluation.enabled=false",
)
SAME = 1e-5
MAIN = "import sys; from rl.cli.train import main; sys.exit(main(sys.argv[1:]))"
Configure = Callable[..., RunConfig]


def launch(learners: int, *arguments: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    """``rl-train`` under torchrun."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(learners), "--max-restarts", str(restarts)),
            *("--no-python", sys.executable, "-c", MAIN, *arguments),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def launched(learners: int, *arguments: str) -> None:
    done = launch(learners, *arguments)
    assert done.returncode == 0, done.stderr[-5000:]


@pytest.fixture(scope="module")
def ends() -> dict[str, Path]:
    """The folders of the undisturbed runs, for all the module's tests."""
    return {}


@pytest.fixture
def one(configure: Configure, ends: dict[str, Path]) -> Path:
    if "one" not in ends:
        ends["one"] = train(configure(*SETTINGS, "name=one"))
    return ends["one"]


@pytest.fixture
def two(configure: Configure, ends: dict[str, Path], tmp_path: Path) -> Path:
    if "two" not in ends:
        config = configure(*SETTINGS, "name=two", "cluster.learners=2")
        save_resolved(config, tmp_path / "two.yaml")
        launched(2, "--config", str(tmp_path / "two.yaml"))
        ends["two"] = Path(config.output_dir, "two")
    return ends["two"]


def adapter(run: Path, step: int = 4) -> dict[str, torch.Tensor]:
    return load_file(run / CHECKPOINTS / f"checkpoint-{step}" / "adapter_model.safetensors")


def assert_same(left: Path, right: Path, exact: bool = False) -> None:
    """The same steps, rollouts, losses and weights."""
    a, b = read_metrics(left / "metrics.jsonl"), read_metrics(right / "metrics.jsonl")
    assert [row["step"] for row in a] == [row["step"] for row in b] == [1, 2, 3, 4]
    for one_row, other in zip(a, b, strict=True):
        for name in ("learner/loss", "learner/grad_norm", "learner/kl_fast", "learner/entropy_slow"):
            assert other[name] == pytest.approx(one_row[name], rel=SAME, abs=0 if exact else SAME), name
        assert other["learner/mismatch_max_fast"] < 1e-4
    for record, again in zip(iter_steps(left), iter_steps(right), strict=True):
        assert [r.codes.tolist() for r in record.rollouts] == [r.codes.tolist() for r in again.rollouts]
    weights, others = adapter(left), adapter(right)
    for name, tensor in weights.items():
        torch.testing.assert_close(others[name], tensor, rtol=0, atol=0 if exact else SAME)


def cut(run: Path, name: str) -> Path:
    """A copy of ``run`` that has lost its checkpoint after step 4."""
    copy = run.parent / name
    shutil.copytree(run, copy)
    shutil.rmtree(copy / CHECKPOINTS / "checkpoint-4")
    return copy


def test_two_learners_are_one(one: Path, two: Path) -> None:
    assert_same(one, two)


def test_a_checkpoint_of_two_resumes_on_one(two: Path) -> None:
    run = cut(two, "on_one")
    train(load_config(run / "config.yaml", ["cluster.learners=1"]), resume=run)
    assert_same(two, run)


def test_a_checkpoint_of_two_resumes_on_three(two: Path) -> None:
    run = cut(two, "on_three")
    launched(3, "--resume", str(run), "cluster.learners=3")
    assert_same(two, run)


def test_blocks_are_whole_and_even() -> None:
    assert Learners(0, 3).blocks(8) == [range(2), range(2, 5), range(5, 8)]
    assert Learners().blocks(5) == [range(5)]


def test_what_does_not_fit_is_said(configure: Configure, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.shard: a single learner"):
        train(configure("cluster.shard=true"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"cluster\.learners: 3, but the launcher started 2"), joined(3):
        pass
