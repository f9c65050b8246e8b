"""Opening a codec."""

from __future__ import annotations

from pathlib import Path

import torch

from rl.codec.base import Codec
from rl.codec.s2_loading import WEIGHTS_FILE, load_s2_codec
from rl.codec.tiny import TinyCodec
from rl.errors import CheckpointError

EMBEDDED = Path(__file__).parent.parent / "assets" / "tiny" / "codec"


def load_codec(path: str, device: str | torch.device = "cpu") -> Codec:
    """The codec that ``path`` means: ``tiny`` is the embedded one, which stays on the CPU.

    Others are a folder with S2's ``codec.pth`` (or that file), or one with a codec of the embedded kind. On
    the device ``meta`` S2's is looked at without being loaded.

    Raises:
        CheckpointError: there is none, or it can't be read.
    """
    if path == "tiny":
        return TinyCodec.load(EMBEDDED)
    named = Path(path)
    if named.is_file() or (named / WEIGHTS_FILE).is_file():
        return load_s2_codec(named, device)
    if (named / "codec.safetensors").is_file():
        return TinyCodec.load(named)
    raise CheckpointError(f"model.codec: no codec in {named}; it needs {WEIGHTS_FILE}, of S2's codec")
