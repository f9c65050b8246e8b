"""Whole runs of a small random policy: the folder they leave, learning, and what stops them."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rl.config import load_config
from rl.errors import ConfigError, RewardError, RunFolderError
from rl.metrics import read_metrics
from rl.run_folder import read_evaluation, read_samples
from rl.sample import sample_only
from rl.schema import RunConfig
from rl.trainer.run import CHECKPOINTS, train
from rollouts.store import iter_steps, read_step, step_path

Configure = Callable[..., RunConfig]


def test_a_run_leaves_a_whole_folder(configure: Configure) -> None:
    config = configure("trainer.beta=0.05")
    folder = train(config)
    assert load_config(folder / "config.yaml") == config
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    for name in ("learner/loss", "learner/kl_fast", "learner/grad_norm", "reward/total/mean"):
        assert all(np.isfinite(row[name]) for row in rows), name
    assert rows[0]["learner/kl_slow"] == pytest.approx(0.0, abs=1e-5)
    assert rows[0]["learner/clip_slow"] == 0.0
    assert all(row["learner/grad_norm"] > 0 for row in rows)
    records = list(iter_steps(folder))
    assert [record.step for record in records] == [1, 2, 3]
    assert [record.rollouts[0].policy_version for record in records] == [1, 2, 3]
    for record in records:
        means = np.nanmean(record.total.reshape(2, 4), 1)
        np.testing.assert_allclose(record.advantages, record.total - means.repeat(4), atol=1e-12)
    evaluation = read_evaluation(folder)
    assert evaluation is not None
    assert {row.name for row in evaluation.rows} >= {"total", "length", "frames"}
    assert len(read_samples(folder)) == 2
    assert (folder / "report.html").is_file()
    assert (folder / CHECKPOINTS / "checkpoint-3" / "adapter_model.safetensors").is_file()
    with pytest.raises(RunFolderError, match="--resume"):
        train(config)
    with pytest.raises(RunFolderError, match="holds a training run"):
        sample_only(config)


def test_sampling_alone_leaves_rollouts(configure: Configure) -> None:
    record = read_step(sample_only(configure()))
    assert (record.split, len(record.rollouts)) == ("sample", 8)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.prompts_per_step=6", "has only 5 prompts"),
        ("evaluation.prompts=6", "evaluation.prompts: 6"),
    ],
)
def test_settings_that_do_not_fit_each_other(configure: Configure, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(configure(override))


def test_a_run_goes_on_from_an_adapter_where_that_run_ended(configure: Configure) -> None:
    small = ["trainer.steps=1", "trainer.learning_rate=1e-2", "evaluation.prompts=1", "evaluation.listen=0"]
    first = train(configure(*small))
    adapter = first / CHECKPOINTS / "checkpoint-1"
    second = train(configure(*small, "name=second", f"lora.adapter={adapter}"))
    ended, began = step_path(first, 1, "eval_after"), step_path(second, 0, "eval_before")
    for one, other in zip(read_step(ended).rollouts, read_step(began).rollouts, strict=True):
        np.testing.assert_array_equal(one.codes, other.codes)
    assert [record.rollouts[0].policy_version for record in iter_steps(second)] == [1]


def test_too_many_missing_rewards_stop_the_run_with_a_checkpoint(configure: Configure) -> None:
    config = configure("rewards.total=log(length - 5)", "evaluation.enabled=false")
    with pytest.raises(RewardError, match="step 1: 100% of the rewards are missing"):
        train(config)
    assert (Path(config.output_dir) / "run" / CHECKPOINTS / "checkpoint-0").is_dir()
    record = read_step(step_path(Path(config.output_dir) / "run", 1))
    assert all("expression gives" in reasons["total"] for reasons in record.reasons)


def test_the_reward_goes_up(configure: Configure) -> None:
    folder = train(
        configure(
            "trainer.steps=12",
            "trainer.prompts_per_step=4",
            "rollouts.group_size=8",
            "trainer.learning_rate=3e-3",
            "evaluation.enabled=false",
        )
    )
    means = [row["reward/total/mean"] for row in read_metrics(folder / "metrics.jsonl")]
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.05


def test_memory_settings_do_not_change_the_gradient(configure: Configure) -> None:
    norms = []
    for number, overrides in enumerate(
        ([], ["trainer.micro_batch_tokens=1", "model.gradient_checkpointing=true"])
    ):
        config = configure(
            f"name=run{number}", "trainer.steps=1", "trainer.beta=0.1", "evaluation.enabled=false", *overrides
        )
        row = read_metrics(train(config) / "metrics.jsonl")[0]
        norms.append((row["learner/grad_norm"], row["learner/loss"]))
    assert norms[0][0] > 1e-6
    np.testing.assert_allclose(norms[0], norms[1], rtol=1e-4, atol=1e-7)


def test_a_bfloat16_base_trains(configure: Configure) -> None:
    config = configure("model.dtype=bfloat16", "trainer.steps=2", "evaluation.enabled=false")
    rows = read_metrics(train(config) / "metrics.jsonl")
    assert all(math.isfinite(row["learner/loss"]) and row["learner/grad_norm"] > 0 for row in rows)


def test_flat_groups_are_left_out_and_the_learning_rate_decays(configure: Configure) -> None:
    folder = train(
        configure("trainer.min_group_std=10", "trainer.learning_rate=1e-6", "evaluation.enabled=false")
    )
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["learner/learning_rate"] for row in rows] == pytest.approx([1e-6, 5.5e-7, 1e-7])
    assert [row["learner/dropped_groups"] for row in rows] == [2.0, 2.0, 2.0]
    assert [(row["learner/loss"], row["learner/grad_norm"]) for row in rows] == [(0.0, 0.0)] * 3
    assert all(np.isnan(record.advantages).all() for record in iter_steps(folder))
