"""The S2 recipe end to end on a tiny checkpoint in S2's layout, its codec beside it, with voices to clone."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from rl.codec.loading import load_codec
from rl.config import load_config
from rl.errors import ConfigError
from rl.metrics import read_metrics
from rl.parts import build_parts
from rl.policy import DualARConfig, DualARForCausalLM
from rl.trainer.run import train
from rollouts.store import iter_steps

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Random weights of the golden policy's shape, but for heads that vLLM's CPU kernels take; its tokenizer;
    and the golden codec with as many codes."""
    folder = tmp_path / "s2"
    folder.mkdir()
    raw = json.loads((FIXTURES / "s2_tiny" / "config.json").read_text())
    raw["text_config"] |= {"head_dim": 32, "dim": 64, "intermediate_size": 128}
    raw["audio_decoder_config"] |= {"head_dim": 32, "text_dim": 64}
    (folder / "config.json").write_text(json.dumps(raw | {"dtype": "float32"}))
    torch.manual_seed(0)
    DualARForCausalLM(DualARConfig.from_pretrained(folder)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURES / "s2_tiny" / name, folder)
    state = torch.load(FIXTURES / "s2_codec_tiny" / "codec.pth", weights_only=True)
    cut = {name: t[:32].clone() if name.endswith("codebook.weight") else t for name, t in state.items()}
    torch.save(cut, folder / "codec.pth")
    shape = json.loads((FIXTURES / "s2_codec_tiny" / "codec_config.json").read_text())
    shape["quantizer"] |= {"codebook_size": 32, "semantic_codebook_size": 32}
    (folder / "codec_config.json").write_text(json.dumps(shape))
    return folder


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A cloned voice, two cloned speakers, and nobody's voice."""
    for number, rate in enumerate((16_000, 48_000)):
        tone = 0.3 * np.sin(2 * np.pi * 200 * (number + 1) * np.arange(rate // 2) / rate)
        soundfile.write(tmp_path / f"{number}.flac", tone, rate)
    one, other = {"audio": "0.flac", "text": "A low tone."}, {"audio": "1.flac", "text": "A higher one."}
    lines = [
        {"id": "one", "text": "Hello.", "references": [one]},
        {"id": "two", "text": "<|speaker:0|>Hi.<|speaker:1|>[laugh] Yes.", "references": [one, other]},
        {"id": "none", "text": "Hello there."},
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "prompts.jsonl"


def _overrides(checkpoint: Path, prompts: Path, engine: str = "torch") -> list[str]:
    recipe = prompts.with_name("length.yaml")
    recipe.write_text("nodes: {length: {type: duration, per_character: 0.03, slack: 1.0}}\ntotal: length\n")
    return [
        f"model.path={checkpoint}", f"prompts.train={prompts}", f"prompts.heldout={prompts}",
        f"output_dir={prompts.parent / 'runs'}", f"rewards={recipe}", "model.dtype=float32",
        f"rollouts.engine={engine}", "rollouts.group_size=4", "rollouts.max_frames=12", "trainer.steps=3",
        "rollouts.kv_cache_gib=0.1",
        "trainer.prompts_per_step=3", "evaluation.enabled=false",
    ]  # fmt: skip


@pytest.mark.parametrize("engine", ["torch", "vllm"])
def test_three_steps(checkpoint: Path, prompts: Path, engine: str) -> None:
    config = load_config("grpo_s2.yaml", _overrides(checkpoint, prompts, engine))
    folder = train(config)
    rows = read_metrics(folder / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert all(row["learner/grad_norm"] > 0 for row in rows)
    assert all(row[f"learner/mismatch_max_{ar}"] < 1e-4 for row in rows for ar in ("slow", "fast"))
    codec = load_codec(str(checkpoint))
    for record in iter_steps(folder):
        assert record.sample_rate == 44_100
        heard = {rollout.prompt.id: rollout.prompt.references for rollout in record.rollouts}
        assert [len(heard[name]) for name in ("none", "one", "two")] == [0, 1, 2]
        assert heard["two"][0].codes.shape == (11, 10)
        np.testing.assert_array_equal(heard["one"][0].codes, heard["two"][0].codes)
        rollout, audio = record.rollouts[0], record.audio[0]
        assert audio is not None
        np.testing.assert_allclose(audio, codec.decode(rollout.codes), atol=1e-4)


@pytest.mark.parametrize(
    ("codec", "sizes"), [("tiny", r"1024 \+ 3 x 1024"), (FIXTURES / "s2_codec_tiny", r"128 \+ 9 x 64")]
)
def test_a_codec_of_other_codebooks_is_refused(
    checkpoint: Path, prompts: Path, codec: str | Path, sizes: str
) -> None:
    config = load_config("grpo_s2.yaml", [*_overrides(checkpoint, prompts), f"model.codec={codec}"])
    with pytest.raises(ConfigError, match=rf"codebooks of {sizes}, but the policy .* of 32 \+ 9 x 32"):
        build_parts(config)
