"""A policy without feedback, trained as configs/grpo_step_audio_3.yaml says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rewards.audio import level_dbfs
from rewards.types import Clip
from rl.config import load_config
from rl.metrics import read_metrics
from rl.policy.loading import load_policy
from rl.schema import LoraConfig, RewardsConfig, RunConfig
from rl.trainer.adapter import add_adapter, merged_weights
from rl.trainer.run import train
from rollouts.store import iter_steps
from tests.step_audio import make_codec, make_policy

Configure = Callable[..., RunConfig]
TALK = "<|speaker:0|>Line {}. <|speaker:1|>Is that so?"


def loudness(clip: Clip) -> float:
    return level_dbfs(clip.audio)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("policy"), spread=0.1)


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_codec(tmp_path_factory.mktemp("codec"))


@pytest.fixture
def configure(policy: Path, codec: Path, tmp_path: Path) -> Configure:
    """The shipped configuration on the small policy and codec, with a reward that needs no model."""
    lines = [{"text": TALK.format(i), "meta": {"instruction": "Calm."}} for i in range(4)]
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    small = [f"output_dir={tmp_path}", f"model.path={policy}", f"model.codec={codec}", "model.dtype=float32"]
    small += [f"prompts.train={prompts}", f"prompts.heldout={prompts}", "evaluation.enabled=false"]
    small += ["trainer.steps=3", "trainer.prompts_per_step=2", "lora.r=4", "lora.alpha=8"]
    small += ["rollouts.engine=torch", "rollouts.group_size=4", "rollouts.max_frames=6"]
    nodes = {"level": {"type": "function", "path": "tests.rl.test_step_audio:loudness"}}

    def configure(*overrides: str) -> RunConfig:
        config = load_config("grpo_step_audio_3.yaml", [*small, *overrides])
        return replace(config, rewards=RewardsConfig(nodes=nodes, total="level"))

    return configure


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_three_steps(configure: Configure, engine: str) -> None:
    folder = train(configure(f"rollouts.engine={engine}"))
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["learner/learning_rate"] for row in rows] == pytest.approx([1e-6, 5.5e-7, 1e-7])
    for row in rows:
        assert row["learner/grad_norm"] > 0
        assert row["learner/dropped_groups"] == 0
        assert max(row["learner/mismatch_max_slow"], row["learner/mismatch_max_fast"]) < 1e-4
    records = list(iter_steps(folder))
    assert [record.rollouts[0].policy_version for record in records] == [1, 2, 3]
    assert all(rollout.codes.shape[1] == 16 for record in records for rollout in record.rollouts)
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_three_steps_turn_by_turn(configure: Configure, engine: str) -> None:
    """Every turn's log-probs are the learner's, ends included."""
    folder = train(configure("rollouts.turns_at_once=1", f"rollouts.engine={engine}"))
    for row in read_metrics(folder / "metrics.jsonl"):
        assert row["learner/grad_norm"] > 0
        assert max(row["learner/mismatch_max_slow"], row["learner/mismatch_max_fast"]) < 1e-4
    for record in iter_steps(folder):
        for rollout in record.rollouts:
            texts = [turn.text for turn in rollout.turns]
            assert texts == rollout.prompt.text.replace(". <", ".\n<").split("\n")
            assert sum(turn.frames for turn in rollout.turns) == len(rollout.codes)


def test_the_adapter_leaves_what_feeds_the_slow_ar_alone(policy: Path) -> None:
    model = add_adapter(load_policy(str(policy))[0], LoraConfig(r=4, alpha=8.0), seed=0)
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained
    assert not any(".adaptor." in name for name in trained | set(merged_weights(model)))
