"""What the voice-similarity nodes share: cosine with the reference, each reference embedded once."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewards.audio import at_16k, fingerprint
from rewards.node import Node, NodeError, Row
from rewards.types import Clip

Voice = tuple[np.ndarray, int]
"""Mono audio ``[n]`` and its sample rate."""


@dataclass
class Similarity(Node):
    """Cosine of the clip's and ``Clip.reference``'s embedding. A clip without a reference is missing."""

    _references: dict[bytes, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @abstractmethod
    def embed(self, audios: Sequence[np.ndarray]) -> list[np.ndarray | NodeError]:
        """A unit-length vector for each 16 kHz clip, or why there is none."""

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        named = [
            (clip.reference, clip.reference_rate)
            for clip in clips
            if clip.reference is not None and clip.reference_rate is not None
        ]
        references = iter(self.embed_references(named))
        own = self.embed_any([(clip.audio, clip.sample_rate) for clip in clips])
        rows: list[Row] = []
        for clip, embedding in zip(clips, own, strict=True):
            if clip.reference is None or clip.reference_rate is None:
                rows.append(NodeError("the prompt names no reference voice"))
                continue
            reference = next(references)
            if isinstance(reference, NodeError):
                rows.append(reference)
            elif isinstance(embedding, NodeError):
                rows.append(embedding)
            else:
                rows.append(float(embedding @ reference))
        return rows

    def embed_references(self, voices: Sequence[Voice]) -> list[np.ndarray | NodeError]:
        """`embed_any` for voices that come again and again: each is embedded once, and alone.

        Together with others it would get other last digits, and so depend on what was scored before.
        """
        keys = [fingerprint(*voice) for voice in voices]
        new = {key: voice for key, voice in zip(keys, voices, strict=True) if key not in self._references}
        failed: dict[bytes, NodeError] = {}
        for key, voice in new.items():
            (embedding,) = self.embed_any([voice])
            if isinstance(embedding, NodeError):
                failed[key] = NodeError(f"the reference voice can't be used: {embedding}")
            else:
                self._references[key] = embedding
        return [failed[key] if key in failed else self._references[key] for key in keys]

    def embed_any(self, voices: Sequence[Voice]) -> list[np.ndarray | NodeError]:
        """`embed` for audio at any rate, with what can't be brought to 16 kHz as an error in its place."""
        ready: list[np.ndarray | NodeError] = []
        for audio, rate in voices:
            try:
                ready.append(at_16k(audio, rate))
            except NodeError as error:
                ready.append(error)
        embedded = iter(self.embed([audio for audio in ready if isinstance(audio, np.ndarray)]))
        return [next(embedded) if isinstance(audio, np.ndarray) else audio for audio in ready]
