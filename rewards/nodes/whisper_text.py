"""What Whisper hears in clips of any length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from rewards.audio import SAMPLE_RATE, at_16k
from rewards.models.whisper_asr import EMBEDDED, MAX_SECONDS, WhisperASR, encode, load_whisper, transcribe
from rewards.node import Answer, Node, NodeError, Row, option
from rewards.nodes.whisper import check_model
from rewards.types import Clip

MAX_TOKENS = 224
"""Of one piece, as in Whisper's own decoding."""


@dataclass
class WhisperText(Node):
    """``.text``: the greedy transcript, piece by piece of ``piece_s`` seconds, joined by blanks.

    Each piece is padded to Whisper's 30 s, so that what is heard doesn't depend on the length of others. A
    word on a border may be heard twice or not at all. In a clip of no length nothing is heard.
    """

    model: str = option(
        EMBEDDED, "tiny.en (in a package), a .pt file, a CTranslate2 folder, or a Whisper name to fetch"
    )
    piece_s: int = option(
        28, "seconds of a piece; the last may be shorter (Long-TTS-Eval: 28)", at_least=1, at_most=MAX_SECONDS
    )
    language: str = option("en", "of the speech; only multilingual models look at it")
    device: str = option(
        "auto", "where the model runs; auto: a GPU where there is one", choices=("auto", "cpu", "cuda")
    )
    batch_size: int = option(16, "pieces heard at once", at_least=1)
    _asr: WhisperASR | None = field(default=None, init=False, repr=False, compare=False)

    def outputs(self) -> tuple[str, ...]:
        return ()

    def texts(self) -> tuple[str, ...]:
        return ("text",)

    def check(self) -> None:
        check_model(self.model)

    def load(self) -> None:
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        self._asr = load_whisper(self.model, torch.device("cuda" if cuda else "cpu"), self.language)

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        rows: list[Row | None] = [None] * len(clips)
        pieces: list[np.ndarray] = []
        owners: list[int] = []
        for i, clip in enumerate(clips):
            try:
                cut = self._pieces(at_16k(clip.audio, clip.sample_rate)) if len(clip.audio) else []
            except NodeError as error:
                rows[i] = error
                continue
            pieces += cut
            owners += [i] * len(cut)
        heard: list[str] = []
        for start in range(0, len(pieces), self.batch_size):
            heard += self._hear(pieces[start : start + self.batch_size])
        return [
            row or Answer({"text": " ".join(text for text, of in zip(heard, owners, strict=True) if of == i)})
            for i, row in enumerate(rows)
        ]

    def _pieces(self, audio: np.ndarray) -> list[np.ndarray]:
        size = self.piece_s * SAMPLE_RATE
        return [audio[start : start + size] for start in range(0, len(audio), size)]

    def _hear(self, pieces: list[np.ndarray]) -> list[str]:
        assert self._asr is not None
        features = encode(self._asr, pieces, MAX_SECONDS)
        return [text for text, _ in transcribe(self._asr, features, [MAX_TOKENS] * len(pieces))]
