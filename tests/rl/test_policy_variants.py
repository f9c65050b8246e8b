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

from rl.policy import DualARConfig, DualARForCausalLM
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
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    config = json.loads((GOLDEN / "config.json").read_text())
    config["audio_decoder_config"].update(fast)
    config["text_config"].update(slow)
    (tmp_path / "ckpt" / "config.json").write_text(json.dumps(config))
    torch.manual_seed(1)
    model = DualARForCausalLM(DualARConfig.from_pretrained(tmp_path / "ckpt"))
    weights = {
        name: (torch.randn(tensor.shape) * (0.3 if tensor.ndim == 1 else tensor.shape[-1] ** -0.5)).numpy()
        + (1.0 if "norm" in name else 0.0)
        for name, tensor in model.state_dict().items()
    }
    weights = {name: value.astype(np.float32) for name, value in weights.items()}
    assert ("audio_decoder.project_in.bias" in weights) == ("dim" in fast)
    save_file(weights, tmp_path / "ckpt" / "model.safetensors", {"format": "pt"})
    rng = np.random.default_rng(2)
    books, first = config["audio_decoder_config"]["num_codebooks"], config["semantic_start_token_id"]
    rows = np.zeros((1 + books, 24), np.int64)
    rows[0] = rng.integers(0, 250, 24)
    frames = np.array([7, 8, 9, 15, 23])
    rows[1:, frames] = rng.integers(0, 32, (books, len(frames)))
    rows[0, frames] = first + rows[1, frames]
    save_file(golden(config, weights, rows, frames), tmp_path / "ckpt" / "golden.safetensors")

    assert max(parity(tmp_path / "ckpt").values()) <= 1e-4
