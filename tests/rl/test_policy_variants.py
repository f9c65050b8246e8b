"""Layouts that no golden data covers, against a second computation that the golden data vouches for."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from rl.errors import CheckpointError
from rl.policy import DualARConfig, DualARForCausalLM
from rl.policy.loading import load_policy
from rl.policy.parity import parity
from tests.rl.numpy_dual_ar import golden

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"


def test_the_second_computation_is_right() -> None:
    published = load_file(GOLDEN / "golden.safetensors")
    config = json.loads((GOLDEN / "config.json").read_text())
    weights = load_file(GOLDEN / "model.safetensors")
    made = golden(config, weights, published["input_rows"], published["fast_frames"])
    for name in ("slow_logits", "slow_hidden", "fast_logits"):
        np.testing.assert_allclose(made[name], published[name], atol=1e-5)


@pytest.mark.parametrize(
    "fast",
    [
        {"dim": 32, "n_head": 2, "n_local_heads": 1, "text_dim": 48},
        {"attention_qk_norm": True, "num_codebooks": 4, "n_local_heads": 4},
        {"dim": 64, "attention_qk_norm": True, "num_codebooks": 16, "head_dim": 8, "rope_base": 10_000.0},
    ],
    ids=["project_in", "qk_norm", "all"],
)
@pytest.mark.parametrize("slow", [{}, {"attention_qk_norm": False, "n_local_heads": 1}], ids=["slow", "mqa"])
def test_other_layouts(tmp_path: Path, fast: dict[str, Any], slow: dict[str, Any]) -> None:
    config = json.loads((GOLDEN / "config.json").read_text())
    config["audio_decoder_config"].update(fast)
    config["text_config"].update(slow)
    weights = random_checkpoint(tmp_path / "ckpt", config)
    assert ("audio_decoder.project_in.bias" in weights) == ("dim" in fast)
    books = config["audio_decoder_config"]["num_codebooks"]
    rows, frames = random_rows(books, 24)
    rows[0, frames] = config["semantic_start_token_id"] + rows[1, frames]
    save_file(golden(config, weights, rows, frames), tmp_path / "ckpt" / "golden.safetensors")

    assert max(parity(tmp_path / "ckpt").values()) <= 1e-4


@pytest.mark.parametrize("scale", [None, 0.7])
@pytest.mark.parametrize("layers", [0, 2])
def test_without_feedback(tmp_path: Path, scale: float | None, layers: int) -> None:
    """StepAudio 3 Gen's style: audio to listen to has tokens of its own, an adaptor, and all 16 codes."""
    config = step_audio_config(audio_scale=scale, adaptor_layers=layers)
    weights = random_checkpoint(tmp_path / "ckpt", config)
    assert sum(".adaptor." in name for name in weights) == 4 * layers
    rows, frames = random_rows(16, 24)
    rows[0, frames] = config["semantic_start_token_id"] + rows[1, frames]
    rows[0, :5] = config["audio_pad_token_id"]
    rows[1:, :5] = np.random.default_rng(3).integers(0, 32, (16, 5))
    save_file(golden(config, weights, rows, frames), tmp_path / "ckpt" / "golden.safetensors")

    assert max(parity(tmp_path / "ckpt").values()) <= 1e-4


def test_the_slow_ar_hears_given_audio_and_not_its_own_lower_codes(tmp_path: Path) -> None:
    config = step_audio_config(adaptor_layers=1)
    random_checkpoint(tmp_path / "ckpt", config)
    model, _ = load_policy(str(tmp_path / "ckpt"))
    assert (model.config.codes_per_step, model.config.residual_codebook_size) == (1, 32)
    rows, frames = random_rows(16, 24)
    rows[0, frames] = config["semantic_start_token_id"] + rows[1, frames]
    rows[0, 0] = config["audio_pad_token_id"]
    given, own = rows.copy(), rows.copy()
    given[1:, 0] += 1
    own[2:, frames] += 1
    before, heard, deaf = (model(torch.from_numpy(x)[None]).hidden for x in (rows, given, own))
    assert torch.equal(before, deaf)
    assert (before - heard).abs().max() > 1e-2


def test_a_new_adaptor_changes_nothing() -> None:
    models = []
    for layers in (0, 2):
        torch.manual_seed(0)
        models.append(DualARForCausalLM(DualARConfig(**step_audio_config(adaptor_layers=layers))))
    models[1].load_state_dict(models[0].state_dict(), strict=False)
    rows, _ = random_rows(16, 24)
    rows[0] = models[0].config.audio_pad_token_id
    plain, adapted = (model(torch.from_numpy(rows)[None]).hidden for model in models)
    assert torch.equal(plain, adapted)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feedback": "some"}, "`feedback` must be one of all, first"),
        ({"prompt_format": "chat"}, "`prompt_format` must be one of fish_s2, step_audio_3"),
        ({"audio_pad_token_id": None}, "needs `audio_pad_token_id`"),
        ({"adaptor_size": 0}, "need feedback `first` and an `adaptor_size`"),
        ({"feedback": "all"}, "need feedback `first` and an `adaptor_size`"),
    ],
)
def test_settings_that_make_no_model(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        DualARForCausalLM(DualARConfig(**step_audio_config(**{"adaptor_layers": 1, **changes})))


def step_audio_config(**changes: Any) -> dict[str, Any]:
    """The golden checkpoint's sizes with 16 codebooks and without feedback."""
    config = json.loads((GOLDEN / "config.json").read_text())
    config["audio_decoder_config"]["num_codebooks"] = 16
    return {**config, "feedback": "first", "audio_scale": None, "adaptor_size": 40, **changes}


def random_checkpoint(folder: Path, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Random weights for ``config`` in ``folder``; returns them."""
    shutil.copytree(GOLDEN, folder)
    (folder / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    model = DualARForCausalLM(DualARConfig.from_pretrained(folder))
    weights = {
        name: (torch.randn(tensor.shape) * (0.3 if tensor.ndim == 1 else tensor.shape[-1] ** -0.5)).numpy()
        + (1.0 if "norm" in name else 0.0)
        for name, tensor in model.state_dict().items()
    }
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return weights


def random_rows(books: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Text rows ``[1 + books, length]`` with codes at five columns, and those columns."""
    rng = np.random.default_rng(2)
    rows = np.zeros((1 + books, length), np.int64)
    rows[0] = rng.integers(0, 250, length)
    frames = np.array([7, 8, 9, 15, 23])
    rows[1:, frames] = rng.integers(0, 31, (books, len(frames)))
    return rows, frames
