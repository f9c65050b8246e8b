"""Counter-based randomness of sampling: a sample's noise depends on nothing but its own identity."""

from __future__ import annotations

import hashlib

import numpy as np


def uniforms(seed: int, prompt_id: str, sample_index: int, frames: int, books: int) -> np.ndarray:
    """Uniforms in [0, 1), float64 ``[frames, books]``: Philox keyed by (seed, prompt id, sample index).

    Row t is the same whatever ``frames``.
    """
    digest = hashlib.blake2b(f"{seed}/{sample_index}/{prompt_id}".encode(), digest_size=16).digest()
    key = np.frombuffer(digest, np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).random((frames, books))
