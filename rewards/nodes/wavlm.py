"""Is it the voice asked for? Cosine of x-vectors on WavLM (Chen et al., 2022) by transformers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rewards.audio import SAMPLE_RATE
from rewards.node import NodeError, option
from rewards.similarity import Similarity
from rl.errors import CheckpointError

SHORTEST = SAMPLE_RATE // 2
"""Samples; with much less, the layers over time have nothing to look at."""


@dataclass
class Wavlm(Similarity):
    """Cosine, -1 to 1, of the clip's voice with ``Clip.reference``'s. A clip without a reference is missing.

    ``source`` is fetched at first use if it isn't a folder here. It isn't the WavLM-large that benchmarks of
    cloned voices use, whose checkpoint is in another layout.
    """

    source: str = option(
        "microsoft/wavlm-base-plus-sv", "folder of a WavLMForXVector in transformers' layout, or a hub name"
    )
    device: str = option("auto", "auto: a GPU where there is one", choices=("auto", "cpu", "cuda"))
    _model: Any = field(default=None, init=False, repr=False, compare=False)
    _features: Any = field(default=None, init=False, repr=False, compare=False)

    def load(self) -> None:
        from transformers import AutoFeatureExtractor, WavLMForXVector

        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        try:
            self._features = AutoFeatureExtractor.from_pretrained(self.source)
            self._model = WavLMForXVector.from_pretrained(self.source).eval().to("cuda" if cuda else "cpu")
        except (OSError, ValueError) as error:
            problem = str(error).partition("\n")[0]
            raise CheckpointError(
                f"wavlm: {self.source} can't be loaded or fetched ({problem}); name a local folder"
            ) from error

    def embed(self, audios: Sequence[np.ndarray]) -> list[np.ndarray | NodeError]:
        """One vector each, one clip at a time: padding to a batch would change them a little."""
        found: list[np.ndarray | NodeError] = []
        for audio in audios:
            if len(audio) < SHORTEST:
                found.append(NodeError("under 0.5 s: too short for a voice print"))
                continue
            inputs = self._features(audio, sampling_rate=SAMPLE_RATE, return_tensors="pt")
            with torch.inference_mode():
                vector = self._model(**inputs.to(self._model.device)).embeddings[0].cpu().numpy()
            norm = np.linalg.norm(vector)
            usable = np.isfinite(norm) and norm > 0
            found.append(vector / norm if usable else NodeError("the encoder gave no finite embedding"))
        return found
