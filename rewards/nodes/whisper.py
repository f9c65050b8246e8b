"""Intelligibility by Whisper: how sure it is of the words that should be heard, and what it hears."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import whisper as openai_whisper

from rewards.audio import SAMPLE_RATE, at_16k
from rewards.models.whisper_align import align
from rewards.models.whisper_asr import (
    EMBEDDED,
    MAX_SECONDS,
    WhisperASR,
    describe,
    encode,
    load_whisper,
    token_logprobs,
    transcribe,
)
from rewards.node import Answer, Model, Node, NodeError, Row, option
from rewards.types import Clip
from rewards.words import write_words
from rl.errors import ConfigError


@dataclass
class Whisper(Node):
    """Per-token ASR confidence of ``Clip.spoken``, and a greedy transcript.

    ``.logp`` is the mean log-probability of the text's tokens and of the end after them, teacher-forced;
    ``.confidence`` is exp(logp), the geometric mean of the tokens' probabilities, 0 to 1. ``.text`` is the
    transcript, ``.loops`` is 1 where it repeats itself in a way the text doesn't, else 0. Clips whose
    transcript loops are heard again in a window twice as long before that is believed. ``.words`` says when
    each word of ``Clip.spoken`` is spoken, in the form of `rewards.words`.
    """

    model: str = option(
        EMBEDDED, "tiny.en (in a package), a .pt file, a CTranslate2 folder, or a Whisper name to fetch"
    )
    transcript: bool = option(True, "also transcribe: .text and .loops; about a third of the cost")
    words: bool = option(False, "also say when each word of the text is spoken: .words")
    window_s: int = option(
        8,
        "seconds heard, clip and silence; below 8 transcripts loop, without them 4 is enough",
        at_least=2,
        at_most=MAX_SECONDS,
    )
    language: str = option("en", "of the speech; only multilingual models look at it")
    device: str = option(
        "auto", "where the model runs; auto: a GPU where there is one", choices=("auto", "cpu", "cuda")
    )
    batch_size: int = option(32, "clips heard at once", at_least=1)
    _asr: WhisperASR | None = field(default=None, init=False, repr=False, compare=False)

    def outputs(self) -> tuple[str, ...]:
        return ("confidence", "logp", "loops") if self.transcript else ("confidence", "logp")

    def texts(self) -> tuple[str, ...]:
        return (*(("text",) if self.transcript else ()), *(("words",) if self.words else ()))

    def check(self) -> None:
        check_model(self.model)

    def models(self) -> Sequence[Model]:
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        return [describe(self.model, cuda)]

    def load(self) -> None:
        cuda = self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())
        self._asr = load_whisper(self.model, torch.device("cuda" if cuda else "cpu"), self.language)

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        rows: list[Row] = [np.nan] * len(clips)
        windows: dict[int, list[tuple[int, np.ndarray]]] = {}
        for i, clip in enumerate(clips):
            try:
                audio = at_16k(clip.audio, clip.sample_rate)
                windows.setdefault(self._window(audio), []).append((i, audio))
            except NodeError as error:
                rows[i] = error
        for seconds, members in windows.items():
            for start in range(0, len(members), self.batch_size):
                batch = members[start : start + self.batch_size]
                answers = self._hear(
                    [audio for _, audio in batch], [clips[i].spoken for i, _ in batch], seconds
                )
                for (i, _), answer in zip(batch, answers, strict=True):
                    rows[i] = answer
        return rows

    def _window(self, audio: np.ndarray) -> int:
        """Whole seconds to pad a clip to: at least one of silence behind it, up to Whisper's 30."""
        if len(audio) > MAX_SECONDS * SAMPLE_RATE:
            raise NodeError(f"{len(audio) / SAMPLE_RATE:.1f} s is longer than Whisper's {MAX_SECONDS} s")
        return max(self.window_s, min(MAX_SECONDS, -(-len(audio) // SAMPLE_RATE) + 1))

    def _hear(self, audios: list[np.ndarray], texts: list[str], seconds: int) -> list[Answer]:
        assert self._asr is not None
        features = encode(self._asr, audios, seconds)
        if self.words:
            logps, spoken = align(self._asr, features, texts, [len(audio) for audio in audios])
        else:
            logps, spoken = token_logprobs(self._asr, features, texts), []
        means = [float(row.mean()) if text.strip() else None for row, text in zip(logps, texts, strict=True)]
        values: list[dict[str, float | str | NodeError]] = []
        for mean in means:
            missing = NodeError("no text to be confident of")
            values.append(
                {
                    "logp": missing if mean is None else mean,
                    "confidence": missing if mean is None else float(np.exp(mean)),
                }
            )
        for row, words in zip(values, spoken, strict=False):
            row["words"] = write_words(words)
        if self.transcript:
            limits = [2 * len(row) + 8 for row in logps]
            heard = transcribe(self._asr, features, limits)
            again = [i for i, (text, ended) in enumerate(heard) if _loops(text, ended, texts[i])]
            if again and seconds < MAX_SECONDS:
                longer = encode(self._asr, [audios[i] for i in again], min(2 * seconds, MAX_SECONDS))
                for i, better in zip(
                    again, transcribe(self._asr, longer, [limits[i] for i in again]), strict=True
                ):
                    heard[i] = better
            for row, (text, ended), wanted in zip(values, heard, texts, strict=True):
                row.update(text=text, loops=float(_loops(text, ended, wanted)))
        return [Answer(row) for row in values]


def check_model(model: str) -> None:
    """Raises `ConfigError` where no Whisper model goes by that name."""
    if model not in openai_whisper.available_models() and not Path(model).exists():
        known = ", ".join(openai_whisper.available_models())
        raise ConfigError(f"model {model} is neither a file or folder here nor one of {known}")


def _loops(heard: str, ended: bool, wanted: str) -> bool:
    """Whether a transcript never ended or repeats itself more often than the text does."""
    return not ended or repeats(heard) > max(2, repeats(wanted))


def repeats(text: str) -> int:
    """How often the most repeated run of words stands in a row; two runs of four words or more count as 3."""
    words = ["".join(c for c in word if c.isalnum()) for word in text.lower().split()]
    most = 1
    for size in range(1, len(words) // 2 + 1):
        run = 0
        for i in range(size, len(words)):
            run = run + 1 if words[i] == words[i - size] else 0
            times = run // size + 1
            most = max(most, 3 if size >= 4 and times == 2 else times)
    return most
