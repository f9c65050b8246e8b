"""Is it the voice asked for? Cosine of GE2E speaker embeddings (Wan et al., 2018) by Resemblyzer."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rewards.audio import at_16k, at_level
from rewards.node import Node, NodeError, Row, option
from rewards.types import Clip

LEVEL = -30.0
"""RMS at which the encoder was trained, dB of full scale."""


@dataclass
class Voiceprint(Node):
    """Cosine, 0 to 1, of the clip's voice with ``Clip.reference``'s. A clip without a reference is missing.

    The useful range is small: noise scores about .6 and silence .5 against any voice, and the right voice
    scores lower in clips under a second.
    """

    device: str = option(
        "auto", "where the encoder runs; auto: a GPU where there is one", choices=("auto", "cpu", "cuda")
    )
    batch_size: int = option(64, "windows of 1.6 s embedded at once", at_least=1)
    _encoder: Any = field(default=None, init=False, repr=False, compare=False)
    _references: dict[bytes, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def load(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from resemblyzer import VoiceEncoder
        self._encoder = VoiceEncoder(None if self.device == "auto" else self.device, verbose=False)

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        keys = [_key(clip) for clip in clips]
        wanted = {
            key: (clip.reference, clip.reference_rate)
            for key, clip in zip(keys, clips, strict=True)
            if key is not None and key not in self._references
        }
        new = self._embed(list(wanted.values()))
        failed: dict[bytes, NodeError] = {}
        for wanted_key, embedding in zip(wanted, new, strict=True):
            if isinstance(embedding, NodeError):
                failed[wanted_key] = embedding
            else:
                self._references[wanted_key] = embedding

        rows: list[Row] = []
        for key, own in zip(
            keys, self._embed([(clip.audio, clip.sample_rate) for clip in clips]), strict=True
        ):
            if key is None:
                rows.append(NodeError("the prompt names no reference voice"))
            elif key in failed:
                rows.append(NodeError(f"in the reference voice: {failed[key]}"))
            elif isinstance(own, NodeError):
                rows.append(own)
            else:
                rows.append(float(own @ self._references[key]))
        return rows

    def _embed(self, audios: Sequence[tuple[Any, Any]]) -> list[np.ndarray | NodeError]:
        """Unit-length ``[256]`` embeddings: the mean over windows of 1.6 s, as Resemblyzer defines it.

        Its ``preprocess_wav`` is left out on purpose: it can trim a short clip to nothing.
        """
        from resemblyzer.audio import wav_to_mel_spectrogram

        found: list[np.ndarray | NodeError] = []
        windows: list[np.ndarray] = []
        spans: dict[int, slice] = {}
        for audio, rate in audios:
            try:
                wav = at_level(at_16k(audio, rate), LEVEL)
            except NodeError as error:
                found.append(error)
                continue
            wav_slices, mel_slices = self._encoder.compute_partial_slices(
                len(wav), rate=1.3, min_coverage=0.75
            )
            mel = wav_to_mel_spectrogram(np.pad(wav, (0, max(0, wav_slices[-1].stop - len(wav)))))
            spans[len(found)] = slice(len(windows), len(windows) + len(mel_slices))
            windows += [mel[part] for part in mel_slices]
            found.append(np.empty(0))
        if windows:
            batches = [
                np.stack(windows[i : i + self.batch_size]) for i in range(0, len(windows), self.batch_size)
            ]
            with torch.inference_mode():
                partial = np.concatenate(
                    [
                        self._encoder(torch.from_numpy(b).to(self._encoder.device)).cpu().numpy()
                        for b in batches
                    ]
                )
            for i, span in spans.items():
                mean = partial[span].mean(axis=0)
                found[i] = mean / np.linalg.norm(mean)
        return found


def _key(clip: Clip) -> bytes | None:
    """Names a reference by its content."""
    if clip.reference is None:
        return None
    content = np.ascontiguousarray(clip.reference, np.float32).tobytes()
    return hashlib.blake2b(content + str(clip.reference_rate).encode(), digest_size=16).digest()
