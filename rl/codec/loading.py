"""Opening a codec."""

from __future__ import annotations

from pathlib import Path

from rl.codec.base import Codec
from rl.codec.tiny import TinyCodec

EMBEDDED = Path(__file__).parent.parent / "assets" / "tiny" / "codec"


def load_codec(path: str) -> Codec:
    """The codec in a directory; ``tiny`` is the embedded one.

    Raises:
        CheckpointError: it can't be read.
    """
    return TinyCodec.load(EMBEDDED if path == "tiny" else path)
