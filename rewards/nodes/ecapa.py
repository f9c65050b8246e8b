"""Is it the voice asked for? Cosine of ECAPA-TDNN embeddings (Desplanques et al., 2020) by speechbrain."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from huggingface_hub import try_to_load_from_cache

from rewards.node import Model, NodeError, option
from rewards.similarity import Similarity

PUBLISHED_BYTES = 83_000_000
"""Of the default ``source``'s weights, in float32, round."""


@dataclass
class Ecapa(Similarity):
    """Cosine, -1 to 1, of the clip's voice with ``Clip.reference``'s. A clip without a reference is missing.

    ``source`` is fetched at first use if it isn't a folder here; a folder keeps the network out altogether.
    Its ``hyperparams.yaml`` can run code: use only sources that you trust.
    """

    source: str = option(
        "speechbrain/spkrec-ecapa-voxceleb", "folder of a speechbrain encoder, or a hub name"
    )
    device: str = option("auto", "auto: a GPU where there is one", choices=("auto", "cpu", "cuda"))
    _encoder: Any = field(default=None, init=False, repr=False, compare=False)

    requires: ClassVar[tuple[str, str]] = ("speechbrain", "speechbrain")

    def models(self) -> Sequence[Model]:
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        licence = "Apache-2.0" if self.source.startswith("speechbrain/") else None
        folder = Path(self.source)
        if folder.is_dir():
            size = sum(file.stat().st_size for file in folder.glob("*.ckpt"))
            return [Model(self.source, size, licence, on_gpu=cuda)]
        fetched = not isinstance(try_to_load_from_cache(self.source, "embedding_model.ckpt"), str)
        return [Model(self.source, PUBLISHED_BYTES, licence, on_gpu=cuda, fetched=fetched)]

    def load(self) -> None:
        from speechbrain.inference.speaker import EncoderClassifier

        forget_lazy_modules()
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        self._encoder = EncoderClassifier.from_hparams(
            source=self.source, savedir=None, run_opts={"device": "cuda" if cuda else "cpu"}
        )

    def embed(self, audios: Sequence[np.ndarray]) -> list[np.ndarray | NodeError]:
        """One vector each, one clip at a time: padding to a batch would change them a little."""
        found: list[np.ndarray | NodeError] = []
        for audio in audios:
            with torch.inference_mode():
                vector = self._encoder.encode_batch(torch.from_numpy(audio)[None])[0, 0].cpu().numpy()
            norm = np.linalg.norm(vector)
            usable = np.isfinite(norm) and norm > 0
            found.append(vector / norm if usable else NodeError("the encoder gave no finite embedding"))
        return found


def forget_lazy_modules() -> None:
    """Take speechbrain's redirects of old module names out of `sys.modules`.

    Whoever asks one for an attribute, as `inspect.getmodule` asks every module, has it import packages that
    may not be there, and gets an ImportError.
    """
    from speechbrain.utils.importutils import LazyModule

    for name in [name for name, module in sys.modules.items() if isinstance(module, LazyModule)]:
        del sys.modules[name]
