"""Is it the voice asked for? Cosine of GE2E speaker embeddings (Wan et al., 2018) by Resemblyzer."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from typing import Any

import numpy as np
import torch

from rewards.audio import at_level
from rewards.node import Model, NodeError, option
from rewards.similarity import Similarity

LEVEL = -30.0
"""RMS at which the encoder was trained, dB of full scale."""


@dataclass
class Voiceprint(Similarity):
    """Cosine, 0 to 1, of the clip's voice with ``Clip.reference``'s. A clip without a reference is missing.

    The useful range is small: noise scores about .6 and silence .5 against any voice, and the right voice
    scores lower in clips under a second.
    """

    device: str = option("auto", "auto: a GPU where there is one", choices=("auto", "cpu", "cuda"))
    batch_size: int = option(64, "windows of 1.6 s embedded at once", at_least=1)
    _encoder: Any = field(default=None, init=False, repr=False, compare=False)

    def models(self) -> Sequence[Model]:
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        with as_file(files("resemblyzer") / "pretrained.pt") as path:
            return [Model("GE2E", path.stat().st_size, "Apache-2.0", on_gpu=cuda)]

    def load(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from resemblyzer import VoiceEncoder
        self._encoder = VoiceEncoder(None if self.device == "auto" else self.device, verbose=False)

    def embed(self, audios: Sequence[np.ndarray]) -> list[np.ndarray | NodeError]:
        """``[256]`` each: the mean over windows of 1.6 s, as in Resemblyzer's ``embed_utterance``.

        Its ``preprocess_wav`` is left out on purpose: it can trim a short clip to nothing.
        """
        from resemblyzer.audio import wav_to_mel_spectrogram

        found: list[np.ndarray | NodeError] = []
        windows: list[np.ndarray] = []
        spans: dict[int, slice] = {}
        for i, audio in enumerate(audios):
            try:
                wav = at_level(audio, LEVEL)
            except NodeError as error:
                found.append(error)
                continue
            wavs, mels = self._encoder.compute_partial_slices(len(wav), rate=1.3, min_coverage=0.75)
            mel = wav_to_mel_spectrogram(np.pad(wav, (0, max(0, wavs[-1].stop - len(wav)))))
            spans[i] = slice(len(windows), len(windows) + len(mels))
            windows += [mel[part] for part in mels]
            found.append(np.empty(0))
        if windows:
            partial = self._embed_windows(np.stack(windows))
            for i, span in spans.items():
                mean = partial[span].mean(axis=0)
                found[i] = mean / np.linalg.norm(mean)
        return found

    def _embed_windows(self, mels: np.ndarray) -> np.ndarray:
        """``[N, 256]`` of ``[N, 160, 40]``."""
        with torch.inference_mode():
            batches = torch.from_numpy(mels).to(self._encoder.device).split(self.batch_size)
            return torch.cat([self._encoder(batch) for batch in batches]).cpu().numpy()
