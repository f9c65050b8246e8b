"""Comparing the policy with reference outputs of the published implementation."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from rl.errors import CheckpointError
from rl.policy.loading import load_policy

TOLERANCE = 1e-4


@torch.inference_mode()
def parity(directory: str | Path) -> dict[str, float]:
    """Greatest absolute differences (fp32) of slow logits, normed hidden and fast logits.

    ``directory`` holds a checkpoint and ``golden.safetensors``: ``input_rows`` ``[1 + K, T]``,
    ``slow_logits`` ``[T, V]``, ``slow_hidden`` ``[T, dim]``, ``fast_frames`` ``[N]``, ``fast_logits``
    ``[N, K - 1, codebook_size]``.

    Raises:
        CheckpointError: the checkpoint or the golden file can't be read.
    """
    model, _ = load_policy(str(directory))
    golden_file = Path(directory) / "golden.safetensors"
    if not golden_file.is_file():
        raise CheckpointError(f"{golden_file} is missing: it holds the outputs to compare with")
    golden = load_file(golden_file)
    rows, frames = golden["input_rows"], golden["fast_frames"]
    hidden = model(rows[None]).hidden[0]
    fast = model.fast_logits(hidden[frames - 1], rows[1:, frames].T)
    return {
        "slow_logits": (model.slow_logits(hidden) - golden["slow_logits"]).abs().max().item(),
        "slow_hidden": (hidden - golden["slow_hidden"]).abs().max().item(),
        "fast_logits": (fast - golden["fast_logits"]).abs().max().item(),
    }
