"""One step ahead: sampled while the learner learns, by the policy from before, and repeated bit for bit."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rl.config import save_resolved
from rl.errors import CheckpointError, ConfigError
from rl.metrics import read_metrics
from rl.schema import RunConfig
from rl.trainer import grpo
from rl.trainer.run import CHECKPOINTS, train
from rollouts.store import iter_steps
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, Rollout, SamplingParams
from tests.rl.test_learners import finish, torchrun
from tests.rl.test_resume import KILLED_AT_A_LOSS, TIMES, Interruption

# checkpoints after steps 3 and 5, so that steps 1 and 4 are sampled by the newest policy
SETTINGS = (
    "trainer.steps=5",
    "trainer.save_every=3",
    "trainer.steps_ahead=1",
    "trainer.importance_cap=2",
    "trainer.learning_rate=1e-2",
    "trainer.num_iterations=2",
    "rollouts.group_size=2",
    "evaluation.enabled=false",
)
LOSSES = 2
"""Of a step: one for each iteration."""
Configure = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def ends() -> dict[str, Path]:
    """Where the undisturbed run is kept for the module's tests."""
    return {}


@pytest.fixture
def whole(configure: Configure, ends: dict[str, Path]) -> Path:
    if not ends:
        ends["folder"] = train(configure(*SETTINGS, "name=whole"))
    return ends["folder"]


def assert_same_end(whole: Path, other: Path) -> None:
    last = Path(CHECKPOINTS, "checkpoint-10", "adapter_model.safetensors")
    weights, again = load_file(whole / last), load_file(other / last)
    assert weights.keys() == again.keys()
    for name, tensor in weights.items():
        assert torch.equal(tensor, again[name]), name
    for left, right in zip(iter_steps(whole), iter_steps(other), strict=True):
        np.testing.assert_array_equal(left.total, right.total)
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            np.testing.assert_array_equal(a.codes, b.codes)
            np.testing.assert_array_equal(a.logprobs, b.logprobs)
            assert a.policy_version == b.policy_version
    rows = zip(read_metrics(whole / "metrics.jsonl"), read_metrics(other / "metrics.jsonl"), strict=True)
    for before, after in rows:
        for name in before.keys() - TIMES:
            np.testing.assert_array_equal(before[name], after[name], name)


def test_a_step_is_sampled_by_the_policy_before_and_corrected(whole: Path) -> None:
    versions = [record.rollouts[0].policy_version for record in iter_steps(whole)]
    assert versions == [1, 1, 2, 4, 4]
    rows = read_metrics(whole / "metrics.jsonl")
    assert [row["rollout/stale"] for row in rows] == [0, 1, 1, 0, 1]
    for row in rows:
        gap = max(row["learner/mismatch_max_slow"], row["learner/mismatch_max_fast"])
        assert (gap < 1e-4) == (row["rollout/stale"] == 0), "an older policy's log-probs differ"


def test_the_second_step_has_the_rollouts_of_an_untrained_policy(configure: Configure, whole: Path) -> None:
    untrained = train(configure(*SETTINGS, "name=still", "trainer.learning_rate=1e-30", "trainer.steps=3"))
    first, second, third = zip(iter_steps(whole), iter_steps(untrained), strict=False)
    for left, right in (first, second):
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            np.testing.assert_array_equal(a.logprobs, b.logprobs)
    assert any(
        not np.array_equal(a.logprobs, b.logprobs) for a, b in zip(*(r.rollouts for r in third), strict=True)
    )


class Watched(TorchEngine):
    """Gets weights only while it doesn't sample, and in the middle of the second step meets the learner."""

    sampling, learning = threading.Event(), threading.Event()
    calls, at_work = 0, False

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        assert not self.at_work
        super().load_weights(weights)

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        self.calls, self.at_work = self.calls + 1, True
        for rollout in super().stream(prompts, n, sampling, seed):
            if self.calls == 2:
                self.sampling.set()
                assert self.learning.wait(60), "the learner waits for the sampler"
            yield rollout
        self.at_work = False


def test_sampling_and_learning_are_at_the_same_time(
    configure: Configure, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss = grpo.dual_ar_loss

    def met(*args: Any) -> Any:
        assert Watched.sampling.wait(60), "the sampler waits for the learner"
        Watched.learning.set()
        return loss(*args)

    monkeypatch.setattr("rl.parts.TorchEngine", Watched)
    monkeypatch.setattr(grpo, "dual_ar_loss", met)
    assert_same_end(whole, train(configure(*SETTINGS, "name=met")))


@pytest.mark.parametrize(
    ("step", "checkpoint"),
    [
        pytest.param(2, None, id="the third is sampled, nothing is saved"),
        pytest.param(4, 6, id="the fifth is sampled, the third was saved"),
    ],
)
def test_a_resumed_run_ends_as_one_that_was_not_interrupted(
    configure: Configure, whole: Path, monkeypatch: pytest.MonkeyPatch, step: int, checkpoint: int | None
) -> None:
    loss, calls = grpo.dual_ar_loss, 0

    def interrupted(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == step * LOSSES:
            raise Interruption
        return loss(*args)

    config = configure(*SETTINGS, "name=cut")
    folder = Path(config.output_dir, "cut")
    monkeypatch.setattr(grpo, "dual_ar_loss", interrupted)
    with pytest.raises(Interruption):
        train(config)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead")]
    monkeypatch.undo()
    saved = [int(path.name.partition("-")[2]) for path in (folder / CHECKPOINTS).glob("checkpoint-*")]
    assert max(saved, default=None) == checkpoint
    train(config, resume=folder)
    assert_same_end(whole, folder)


@pytest.mark.slow
def test_a_killed_run_resumed(configure: Configure, whole: Path, tmp_path: Path) -> None:
    config = configure(*SETTINGS, "name=killed")
    file, folder = tmp_path / "killed.yaml", Path(config.output_dir, "killed")
    save_resolved(config, file)
    command = [sys.executable, "-c", KILLED_AT_A_LOSS, str(5 * LOSSES - 1), "--config", str(file)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1, 2, 3, 4]
    train(config, resume=folder)
    assert_same_end(whole, folder)


@pytest.mark.slow
def test_two_learners_one_step_ahead_are_one(configure: Configure, whole: Path, tmp_path: Path) -> None:
    config = configure(*SETTINGS, "name=two", "cluster.learners=2")
    save_resolved(config, tmp_path / "two.yaml")
    finish(torchrun(2, "--config", str(tmp_path / "two.yaml")))
    two = Path(config.output_dir, "two")
    for left, right in zip(iter_steps(whole), iter_steps(two), strict=True):
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            np.testing.assert_array_equal(a.codes, b.codes)
            assert a.policy_version == b.policy_version
    rows = zip(read_metrics(whole / "metrics.jsonl"), read_metrics(two / "metrics.jsonl"), strict=True)
    for one, other in rows:
        for name in ("learner/loss", "learner/grad_norm", "learner/ess_fast", "rollout/stale"):
            assert other[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), name


class Failing(TorchEngine):
    """Fails after the first rollout of the third call."""

    calls = 0

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        self.calls += 1
        for rollout in super().stream(prompts, n, sampling, seed):
            yield rollout
            if self.calls == 3:
                raise CheckpointError("the engine is out of order; start anew with --resume")


def test_what_fails_beside_the_learner_is_raised_and_no_finished_step_is_lost(
    configure: Configure, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(*SETTINGS, "name=failed")
    monkeypatch.setattr("rl.parts.TorchEngine", Failing)
    with pytest.raises(CheckpointError, match="out of order"):
        train(config)
    monkeypatch.undo()
    folder = Path(config.output_dir, "failed")
    assert [row["step"] for row in read_metrics(folder / "metrics.jsonl")] == [1, 2]
    assert [record.step for record in iter_steps(folder)] == [1, 2]
    train(config, resume=folder)
    assert_same_end(whole, folder)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.importance_cap=null", r"trainer\.importance_cap: null, but with trainer\.steps_ahead=1"),
        ("trainer.save_every=1", r"trainer\.save_every: 1, but trainer\.steps_ahead=1 pauses"),
        ("lora.dropout=0.1", r"lora\.dropout: 0\.1, but with trainer\.steps_ahead=1"),
        ("trainer.steps_ahead=2", r"trainer\.steps_ahead must be a whole number from 0 up to 1, not 2"),
    ],
)
def test_what_does_not_go_together_is_said(configure: Configure, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        train(configure(*SETTINGS, override))
    assert "\n" not in str(caught.value)
