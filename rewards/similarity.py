"""What the voice-similarity nodes share: cosine with the reference, each reference embedded once."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewards.audio import at_16k
from rewards.node import Node, NodeError, Row
from rewards.types import Clip


@dataclass
class Similarity(Node):
    """Cosine of the clip's and ``Clip.reference``'s embedding. A clip without a reference is missing."""

    _references: dict[bytes, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @abstractmethod
    def embed(self, audios: Sequence[np.ndarray]) -> list[np.ndarray | NodeError]:
        """A unit-length vector for each 16 kHz clip, or why there is none."""

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        keys = [_content(clip) for clip in clips]
        new = {
            key: (clip.reference, clip.reference_rate)
            for key, clip in zip(keys, clips, strict=True)
            if key is not None and key not in self._references
        }
        failed: dict[bytes, NodeError] = {}
        for name, embedding in zip(new, self._embed_any(list(new.values())), strict=True):
            if isinstance(embedding, NodeError):
                failed[name] = embedding
            else:
                self._references[name] = embedding
        own = self._embed_any([(clip.audio, clip.sample_rate) for clip in clips])
        rows: list[Row] = []
        for key, embedding in zip(keys, own, strict=True):
            if key is None:
                rows.append(NodeError("the prompt names no reference voice"))
            elif key in failed:
                rows.append(NodeError(f"the reference voice can't be used: {failed[key]}"))
            elif isinstance(embedding, NodeError):
                rows.append(embedding)
            else:
                rows.append(float(embedding @ self._references[key]))
        return rows

    def _embed_any(self, audios: Sequence[tuple[Any, Any]]) -> list[np.ndarray | NodeError]:
        """`embed` for audio at any rate, with what can't be brought to 16 kHz as an error in its place."""
        ready: list[np.ndarray | NodeError] = []
        for audio, rate in audios:
            try:
                ready.append(at_16k(audio, rate))
            except NodeError as error:
                ready.append(error)
        embedded = iter(self.embed([audio for audio in ready if isinstance(audio, np.ndarray)]))
        return [next(embedded) if isinstance(audio, np.ndarray) else audio for audio in ready]


def _content(clip: Clip) -> bytes | None:
    """Names a reference by its content; None where there is none."""
    if clip.reference is None:
        return None
    content = np.ascontiguousarray(clip.reference, np.float32).tobytes()
    return hashlib.blake2b(content + str(clip.reference_rate).encode(), digest_size=16).digest()
