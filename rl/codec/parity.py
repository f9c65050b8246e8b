"""Comparing a codec with reference outputs of the published implementation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from rl.codec.s2_loading import load_s2_codec
from rl.errors import CheckpointError


def codec_parity(directory: str | Path) -> dict[str, float]:
    """How many codes differ, and the greatest absolute differences of audio (fp32).

    ``directory`` holds a ``codec.pth`` and ``golden.safetensors``: ``audio`` ``[n]``, its ``codes``
    ``[K, T]`` and what they are ``decoded`` to, ``[2048 T]``; and the same of random codes.

    Raises:
        CheckpointError: the codec or the golden file can't be read.
    """
    codec = load_s2_codec(directory)
    golden_file = Path(directory) / "golden.safetensors"
    if not golden_file.is_file():
        raise CheckpointError(f"{golden_file} is missing: it holds the outputs to compare with")
    golden = load_file(golden_file)
    codes = codec.encode(golden["audio"], codec.sample_rate)
    decoded, of_random = codec.decode_batch([golden["codes"].T, golden["random_codes"].T])
    return {
        "codes": float(np.sum(codes != golden["codes"].T)),
        "decoded": float(np.abs(decoded - golden["decoded"]).max()),
        "random_decoded": float(np.abs(of_random - golden["random_decoded"]).max()),
    }
