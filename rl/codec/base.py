"""The contract every codec keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


class Codec(Protocol):
    """Audio to codes and back. A frame is one step of the slow AR: K codes, ``1 / frame_rate`` seconds."""

    sample_rate: int
    frame_rate: float
    codebook_sizes: tuple[int, ...]

    def encode(self, wav: np.ndarray, sample_rate: int) -> np.ndarray:
        """Mono float audio ``[n]`` at any rate to int64 codes ``[T, K]``."""
        ...

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes ``[T, K]`` to mono float32 audio ``[n]`` at ``sample_rate``."""
        ...

    def decode_batch(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """As :meth:`decode`, for codes of unequal lengths; equal to decoding one at a time."""
        ...
