"""Whole runs of a small random policy: the folder they leave, learning, resuming, and what stops them."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rl.config import load_config
from rl.errors import ConfigError, RewardError, RunFolderError
from rl.metrics import read_metrics
from rl.policy import DualARConfig, DualARForCausalLM
from rl.run_folder import read_evaluation, read_samples
from rl.sample import sample_only
from rl.schema import RunConfig
from rl.trainer.run import CHECKPOINTS, train
from rollouts.store import iter_steps, read_step, step_path

BOOKS, SIZE = 4, 1024
Configure = Callable[..., RunConfig]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random 2-layer ARs, 48 wide, with the embedded codec's codebooks."""
    folder = tmp_path_factory.mktemp("policy")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    bpe = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    names = ["im_start", "im_end", "pad", "voice", "audio_pad", *(f"semantic:{i}" for i in range(SIZE))]
    bpe.add_special_tokens([f"<|{name}|>" for name in names])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|im_end|>", pad_token="<|pad|>")
    ids = tokenizer.convert_tokens_to_ids
    shape = {"n_layer": 2, "n_head": 3, "n_local_heads": 3, "head_dim": 16, "dim": 48}
    config = DualARConfig(
        text_config={
            **shape, "vocab_size": len(tokenizer), "intermediate_size": 96, "max_seq_len": 256,
            "attention_qk_norm": True,
        },
        audio_decoder_config={
            **shape, "vocab_size": SIZE, "intermediate_size": 96, "max_seq_len": BOOKS + 1,
            "text_dim": 48, "num_codebooks": BOOKS,
        },
        semantic_start_token_id=ids("<|semantic:0|>"),
        semantic_end_token_id=ids(f"<|semantic:{SIZE - 1}|>"),
        eos_token_id=ids("<|im_end|>"), pad_token_id=ids("<|pad|>"), audio_pad_token_id=ids("<|audio_pad|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model = DualARForCausalLM(config)
    with torch.no_grad():  # a direction that every audio position has in common makes the end likely: 0.15
        tokens = model.text_model.model.embeddings.weight
        common = torch.nn.functional.normalize(torch.randn(48), dim=0)
        model.audio_decoder.codebook_embeddings.weight += common
        tokens[ids("<|voice|>")] += common
        tokens[ids("<|im_end|>")] = common * math.log(180) / math.sqrt(48)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def configure(policy: Path, tmp_path: Path) -> Configure:
    """A small run in ``tmp_path``; keyword ``name`` and overrides change it."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"Line {i}."}) + "\n" for i in range(5)))
    file = tmp_path / "run.yaml"
    file.write_text(
        json.dumps(
            {
                "output_dir": str(tmp_path / "runs"),
                "model": {"path": str(policy)},
                "prompts": {"train": str(prompts), "heldout": str(prompts)},
                "rollouts": {"group_size": 4, "max_frames": 6},
                "rewards": {
                    "nodes": {"length": {"type": "duration", "per_character": 0.03, "slack": 1.0}},
                    "total": "length",
                },
                "lora": {"r": 4, "alpha": 8},
                "trainer": {"steps": 3, "prompts_per_step": 2, "micro_batch_size": 4, "save_every": 2},
                "evaluation": {"prompts": 3, "samples": 2, "listen": 2},
            }
        )
    )
    return lambda *overrides: load_config(file, overrides)


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


def test_an_interrupted_run_goes_on_to_the_same_end(configure: Configure) -> None:
    overrides = ["trainer.num_iterations=2", "evaluation.enabled=false", "trainer.steps=4"]
    whole = train(configure(*overrides, "name=whole"))
    config = configure(*overrides, "name=cut")
    cut = train(config)
    for path in (cut / CHECKPOINTS / "checkpoint-8").iterdir():  # as if killed after step 3
        path.unlink()
    train(config, resume=cut)
    for left, right in zip(iter_steps(whole), iter_steps(cut), strict=True):
        np.testing.assert_array_equal(left.total, right.total)
        assert all(
            np.array_equal(a.codes, b.codes) for a, b in zip(left.rollouts, right.rollouts, strict=True)
        )
        assert left.rollouts[0].policy_version == right.rollouts[0].policy_version
    for before, after in zip(
        read_metrics(whole / "metrics.jsonl"), read_metrics(cut / "metrics.jsonl"), strict=True
    ):
        for name in before.keys() - {"time", "time/step_s", "time/collect_s", "rollout/frames_per_s"}:
            assert before[name] == after[name], name
    finished = (cut / "metrics.jsonl").read_text()
    train(config, resume=cut)
    assert (cut / "metrics.jsonl").read_text() == finished, "nothing is left to do"
    with pytest.raises(RunFolderError, match="differs"):
        train(configure(*overrides, "name=cut", "trainer.gamma=0.5"), resume=cut)


def test_sampling_alone_leaves_rollouts(configure: Configure) -> None:
    record = read_step(sample_only(configure()))
    assert (record.split, len(record.rollouts)) == ("sample", 8)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.micro_batch_size=3", "trainer.micro_batch_size: 3 doesn't divide a step's 8 rollouts"),
        ("trainer.prompts_per_step=6", "has only 5 prompts"),
        ("evaluation.prompts=6", "evaluation.prompts: 6"),
    ],
)
def test_settings_that_do_not_fit_each_other(configure: Configure, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(configure(override))


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
            "trainer.micro_batch_size=16",
            "evaluation.enabled=false",
        )
    )
    means = [row["reward/total/mean"] for row in read_metrics(folder / "metrics.jsonl")]
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.05


def test_memory_settings_do_not_change_the_gradient(configure: Configure) -> None:
    norms = []
    for number, overrides in enumerate(
        (["trainer.micro_batch_size=8"], ["trainer.micro_batch_size=1", "model.gradient_checkpointing=true"])
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
