"""Does each turn have its speaker's voice? Per-token confidence of the tagged text, heavier on its tags."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rewards.audio import SAMPLE_RATE, at_16k
from rewards.catalogue import build_node
from rewards.node import Answer, Model, Node, NodeError, Row, option, reads
from rewards.similarity import Similarity, Voice
from rewards.tags import Kind, Target, parse_target, tag_weighted_confidence
from rewards.turns import turn_confidences
from rewards.types import Clip
from rewards.words import Word, locate, read_words


@dataclass
class TagConfidence(Node):
    """Confidence of ``Clip.text``'s tokens, 0 to 1, where tags weigh more than words (see `rewards.tags`).

    A word's tokens have the ASR's confidence; a vocal tag's is ``vocal``. A speaker tag's is how likely its
    turn is of that speaker (see `rewards.turns`); a turn that isn't spoken has ``floor``. ``.speaker`` is the
    geometric mean of the speaker tags' confidences alone, ``.similarity`` the mean cosine of the turns with
    their own reference voice, 0 for a turn that isn't spoken.
    """

    words: str = reads("text", "word times, such as asr.words")
    vocal: str = reads("number", "confidence that vocal tags are performed, such as vocal.degree")
    text_weight: float = option(1.0, "of each token of a word", at_least=0)
    speaker_weight: float = option(4.0, "of each speaker tag", at_least=0)
    vocal_weight: float = option(2.0, "of each vocal tag", at_least=0)
    floor: float = option(0.01, "least confidence of a tag, and that of a missing turn", above=0, at_most=1)
    temperature: float = option(0.05, "divides the cosines before the softmax", above=0)
    same_voice: float = option(0.8, "usual cosine of turns of one voice, for a voice heard once", at_most=1)
    other_voice: float = option(0.6, "usual cosine of two voices, for a voice without others", at_most=1)
    min_seconds: float = option(0.2, "a turn with less audio isn't spoken", above=0)
    min_logp: float = option(-4.0, "a turn whose words' mean log-probability is lower isn't spoken")
    encoder: str = option("voiceprint", "node type that embeds voices", choices=("voiceprint", "ecapa"))
    _encoder: Any = field(default=None, init=False, repr=False, compare=False)

    def outputs(self) -> tuple[str, ...]:
        return ("", "speaker", "similarity")

    def models(self) -> Sequence[Model] | None:
        return build_node({"type": self.encoder}, "tag_confidence.encoder").models()

    def load(self) -> None:
        self._encoder = build_node({"type": self.encoder}, "tag_confidence.encoder")
        assert isinstance(self._encoder, Similarity)
        self._encoder.load()

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        heard: list[_Heard | NodeError] = []
        for clip, words in zip(clips, inputs["words"], strict=True):
            try:
                heard.append(self._hear(clip, read_words(words)))
            except NodeError as error:
                heard.append(error)
        turns = [turn for one in heard if isinstance(one, _Heard) for turn in one.turns if turn is not None]
        embedded = iter(self._encoder.embed_any(turns))
        rows: list[Row] = []
        for clip, one, vocal in zip(clips, heard, inputs["vocal"], strict=True):
            if isinstance(one, NodeError):
                rows.append(one)
                continue
            found = [None if turn is None else next(embedded) for turn in one.turns]
            try:
                rows.append(self._row(clip, one, [_usable(vector) for vector in found], vocal))
            except NodeError as error:
                rows.append(error)
        return rows

    def _hear(self, clip: Clip, words: list[Word]) -> _Heard:
        """The clip cut into the turns that have a speaker tag."""
        target = parse_target(clip.text)
        placed = locate(target.words, words)
        audio = at_16k(clip.audio, clip.sample_rate)
        turns: list[Voice | None] = []
        for turn in target.turns:
            if turn.speaker is None:
                continue
            spoken = [word for word in placed[turn.start : turn.stop] if word is not None]
            logps = [p for word in spoken for p in word.logps]
            begin, end = (spoken[0].start, spoken[-1].end) if spoken else (0.0, 0.0)
            if len(target.turns) == 1:
                begin, end = 0.0, len(audio) / SAMPLE_RATE
            there = end - begin >= self.min_seconds and (not logps or np.mean(logps) >= self.min_logp)
            piece = audio[round(begin * SAMPLE_RATE) : round(end * SAMPLE_RATE)]
            turns.append((piece, SAMPLE_RATE) if there else None)
        return _Heard(target, placed, turns)

    def _row(self, clip: Clip, heard: _Heard, turns: list[np.ndarray | None], vocal: float) -> Answer:
        speakers = [turn.speaker for turn in heard.target.turns if turn.speaker is not None]
        voices = self._voices(clip, speakers)
        confidences = turn_confidences(
            speakers,
            turns,
            voices,
            temperature=self.temperature,
            same_voice=self.same_voice,
            other_voice=self.other_voice,
        )
        tags = [math.log(max(p or 0.0, self.floor)) for p in confidences]
        floor = math.log(self.floor)
        tokens: list[tuple[Kind, float]] = [("speaker", p) for p in tags]
        for word in heard.words:
            tokens += [("text", p) for p in word.logps] if word is not None else [("text", floor)]
        tokens += [("vocal", math.log(max(vocal, self.floor)))] * len(heard.target.instructions)
        cosines = [
            0.0 if turn is None else float(turn @ voices[speaker])
            for speaker, turn in zip(speakers, turns, strict=True)
            if speaker in voices
        ]
        untagged = NodeError("the text names no speaker")
        voiceless = NodeError("the prompt names no reference voice of a speaker in the text")
        weights: dict[Kind, float] = {
            "text": self.text_weight,
            "speaker": self.speaker_weight,
            "vocal": self.vocal_weight,
        }
        return Answer(
            {
                "": tag_weighted_confidence(tokens, weights),
                "speaker": math.exp(sum(tags) / len(tags)) if tags else untagged,
                "similarity": sum(cosines) / len(cosines) if cosines else voiceless,
            },
            {"turns": [[s, p] for s, p in zip(speakers, confidences, strict=True)]},
        )

    def _voices(self, clip: Clip, speakers: Sequence[str]) -> dict[str, np.ndarray]:
        """Embeddings of the prompt's voices by speaker; a single reference is the first speaker's."""
        named = dict(clip.voices)
        if not named and speakers and clip.reference is not None and clip.reference_rate is not None:
            named = {speakers[0]: (clip.reference, clip.reference_rate)}
        vectors = self._encoder.embed_references(list(named.values()))
        return {
            name: vector
            for name, vector in zip(named, map(_usable, vectors), strict=True)
            if vector is not None
        }


@dataclass(frozen=True)
class _Heard:
    """A clip's target, each of its words as spoken, and the audio of its tagged turns: None if not spoken."""

    target: Target
    words: Sequence[Word | None]
    turns: Sequence[Voice | None]


def _usable(vector: np.ndarray | NodeError | None) -> np.ndarray | None:
    if isinstance(vector, NodeError):
        raise vector
    return vector
