"""Several learner processes are as one: the same losses and weights, checkpoints for any number of them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
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

# 9 rollouts a step: 4 and 5 for two learners, 3 for each of three; micro-batches of one or two
SETTINGS = (
    "trainer.steps=4",
    "trainer.prompts_per_step=3",
    "rollouts.group_size=3",
    "trainer.micro_batch_tokens=60",
    "trainer.save_every=2",
    "trainer.beta=0.05",
    "evaluation.enabled=false",
)
SAME = 1e-5
MAIN = "import sys; from rl.cli.train import main; sys.exit(main(sys.argv[1:]))"
Configure = Callable[..., RunConfig]


def start(*command: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True)


def torchrun(learners: int, *arguments: str, restarts: int = 0) -> subprocess.Popen[str]:
    """``rl-train`` in so many processes, begun."""
    return start(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(learners), "--max-restarts", str(restarts)),
        *("--no-python", sys.executable, "-c", MAIN, *arguments),
    )


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    """What ``process`` has printed, once it has ended with ``code``."""
    output, _ = process.communicate()
    assert process.returncode == code, output[-5000:]
    return output


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
        finish(torchrun(2, "--config", str(tmp_path / "two.yaml")))
        ends["two"] = Path(config.output_dir, "two")
    return ends["two"]


def adapter(run: Path, step: int) -> dict[str, torch.Tensor]:
    return load_file(run / CHECKPOINTS / f"checkpoint-{step}" / "adapter_model.safetensors")


def assert_same(left: Path, right: Path, exact: bool = False) -> None:
    """The same steps, rollouts, losses and weights."""
    a, b = read_metrics(left / "metrics.jsonl"), read_metrics(right / "metrics.jsonl")
    assert [row["step"] for row in a] == [row["step"] for row in b] == list(range(1, len(a) + 1))
    assert a[0]["learner/grad_norm"] > 1e-6
    for one_row, other in zip(a, b, strict=True):
        for name in ("learner/loss", "learner/grad_norm", "learner/kl_fast", "learner/entropy_slow"):
            assert other[name] == pytest.approx(one_row[name], rel=SAME, abs=0 if exact else SAME), name
        assert other["learner/mismatch_max_fast"] < 1e-4
    for record, again in zip(iter_steps(left), iter_steps(right), strict=True):
        assert [r.codes.tolist() for r in record.rollouts] == [r.codes.tolist() for r in again.rollouts]
    weights, others = adapter(left, len(a)), adapter(right, len(b))
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


@pytest.mark.slow
def test_a_checkpoint_of_two_resumes_on_three(two: Path) -> None:
    run = cut(two, "on_three")
    finish(torchrun(3, "--resume", str(run), "cluster.learners=3"))
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


@pytest.mark.slow
def test_sharded_weights_change_nothing(configure: Configure, two: Path, tmp_path: Path) -> None:
    config = configure(
        *SETTINGS,
        "name=sharded",
        "cluster.shard=true",
        "model.gradient_checkpointing=true",
        "trainer.micro_batch_tokens=1",  # 4 passes and 5
    )
    save_resolved(config, tmp_path / "sharded.yaml")
    finish(torchrun(2, "--config", str(tmp_path / "sharded.yaml")))
    assert_same(two, Path(config.output_dir, "sharded"))


@pytest.mark.slow
def test_an_error_is_said_once_and_ends_all(configure: Configure, tmp_path: Path) -> None:
    config = configure(*SETTINGS, "rewards.total=log(length - 5)")
    save_resolved(config, tmp_path / "run.yaml")
    output = finish(torchrun(2, "--config", str(tmp_path / "run.yaml")), code=1)
    assert output.count("error: step 1: 100% of the rewards are missing") == 1
    assert "rl/trainer" not in output, "no traceback of ours"


def wait_for_step(process: subprocess.Popen[str], run: Path, step: int) -> None:
    while process.poll() is None:
        if (run / "metrics.jsonl").exists() and len(read_metrics(run / "metrics.jsonl")) >= step:
            return
        time.sleep(0.1)
    raise AssertionError(process.communicate()[0][-5000:])


def kill_one(process: subprocess.Popen[str], words: str) -> None:
    """Kill the youngest descendant of ``process`` whose command line begins with ``words``."""
    family = psutil.Process(process.pid).children(recursive=True)
    victims = [child for child in family if " ".join(child.cmdline()).startswith(words)]
    os.kill(max(victims, key=lambda child: child.create_time()).pid, signal.SIGKILL)


@pytest.mark.slow
def test_a_killed_learner_under_torchrun(configure: Configure, two: Path, tmp_path: Path) -> None:
    config = configure(*SETTINGS, "name=killed")
    save_resolved(config, tmp_path / "killed.yaml")
    run = Path(config.output_dir, "killed")
    process = torchrun(2, "--config", str(tmp_path / "killed.yaml"), restarts=1)
    wait_for_step(process, run, 3)
    kill_one(process, f"{sys.executable} -c")
    finish(process)
    assert_same(two, run, exact=True)


@pytest.mark.slow
def test_each_kind_of_process_killed_once_on_a_cluster(configure: Configure, tmp_path: Path) -> None:
    def begin(name: str, *overrides: str) -> tuple[subprocess.Popen[str], Path]:
        config = configure(*SETTINGS, "trainer.steps=12", "trainer.save_every=1", f"name={name}", *overrides)
        save_resolved(config, tmp_path / f"{name}.yaml")
        process = start(sys.executable, "-c", MAIN, "--config", str(tmp_path / f"{name}.yaml"))
        return process, Path(config.output_dir, name)

    on_cluster = (
        *("cluster.learners=2", "cluster.learner_cpus=0.25"),
        *("rollouts.workers=2", "rollouts.worker_cpus=0.25"),
        "rewards.nodes.length.run={where: ray, workers: 2, num_cpus: 0.25}",
    )
    process, alone = begin("alone")
    finish(process)
    process, undisturbed = begin("undisturbed", *on_cluster)
    finish(process)
    assert_same(alone, undisturbed)
    process, run = begin("killed", *on_cluster)
    for step, kind in ((1, "_Worker"), (3, "_Scorer"), (5, "RayTrainWorker"), (8, "RayTrainWorker")):
        wait_for_step(process, run, step)
        kill_one(process, f"ray::{kind}")
    assert "step 12/12" in finish(process)
    assert_same(undisturbed, run, exact=True)
