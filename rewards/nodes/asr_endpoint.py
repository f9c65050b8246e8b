"""What is heard, by an ASR behind an endpoint, and how sure it is of the words and tags that should be."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.endpoints.node import EndpointNode
from rewards.endpoints.request import Body, Request
from rewards.endpoints.transcript import text_of, tokens_of, words_of
from rewards.endpoints.wav import wav_bytes
from rewards.node import Answer, NodeError, Row, Value, option
from rewards.nodes.whisper import repeats
from rewards.tags import Kind, confidences_of_heard, tag_weighted_confidence
from rewards.types import Clip
from rewards.words import write_words


@dataclass(kw_only=True)
class AsrEndpoint(EndpointNode):
    """``.text``: what an ASR behind ``/audio/transcriptions`` hears; ``.loops``: 1 where it repeats itself.

    ``gives: logprobs`` adds ``.confidence``, 0 to 1: the weighted geometric mean of the probabilities of the
    words and tags of ``Clip.text``, where one that isn't heard in its place has the probability ``floor``;
    and ``.missed``, the number of vocal tags that aren't. That scores tags if the ASR writes them itself,
    with speakers numbered from 0 in the order in which they appear. ``gives: words`` adds ``.words``, the
    words with their times. Weights and floor are ours.
    """

    gives: str = option(
        "text", "what the server is asked for beside the text", choices=("text", "logprobs", "words")
    )
    language: str | None = option(None, "of the speech (ISO 639-1); null: the server finds out")
    prompt: str | None = option(None, "text that the ASR continues, such as an example with tags")
    temperature: float | None = option(0.0, "of the ASR's sampling; null isn't sent", at_least=0)
    text_weight: float = option(1.0, "of each word in the confidence", at_least=0)
    speaker_weight: float = option(4.0, "of each speaker tag", at_least=0)
    vocal_weight: float = option(2.0, "of each vocal tag", at_least=0)
    floor: float = option(0.01, "probability of what isn't heard in its place", above=0, at_most=1)

    def outputs(self) -> tuple[str, ...]:
        return ("confidence", "missed", "loops") if self.gives == "logprobs" else ("loops",)

    def texts(self) -> tuple[str, ...]:
        return ("text", "words") if self.gives == "words" else ("text",)

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        groups = self.ask([[self._request(clip)] for clip in clips])
        return [self._row(clip, body) for clip, (body,) in zip(clips, groups, strict=True)]

    def _request(self, clip: Clip) -> Request:
        options = {
            "language": self.language,
            "prompt": self.prompt,
            "temperature": self.temperature,
            "response_format": "verbose_json" if self.gives == "words" else "json",
            "timestamp_granularities": ["word"] if self.gives == "words" else None,
            "include": ["logprobs"] if self.gives == "logprobs" else None,
        }
        sent = {name: value for name, value in options.items() if value is not None}
        audio = wav_bytes(clip.audio, clip.sample_rate)
        return Request("transcription", {"model": self.model, **sent}, audio)

    def _row(self, clip: Clip, body: Body | NodeError) -> Row:
        if isinstance(body, NodeError):
            return body
        try:
            text = text_of(body)
        except NodeError as error:
            return error
        loops = repeats(text) > max(2, repeats(clip.spoken))
        heard: dict[str, Value | NodeError] = {"text": text, "loops": float(loops)}
        try:
            if self.gives == "words":
                heard["words"] = write_words(words_of(body))
            elif self.gives == "logprobs":
                heard |= self._confidence(clip.text, tokens_of(body))
        except NodeError as error:
            added = {*self.outputs(), *self.texts()} - heard.keys()
            heard |= dict.fromkeys(added, error)
        return Answer(heard)

    def _confidence(self, text: str, heard: Sequence[tuple[str, float]]) -> dict[str, float]:
        tokens = confidences_of_heard(in_order_of_appearance(text), heard, self.floor)
        missed = [logp <= math.log(self.floor) for kind, logp in tokens if kind == "vocal"]
        weights: dict[Kind, float] = {
            "text": self.text_weight,
            "speaker": self.speaker_weight,
            "vocal": self.vocal_weight,
        }
        return {"confidence": tag_weighted_confidence(tokens, weights), "missed": float(sum(missed))}


def in_order_of_appearance(text: str) -> str:
    """``text`` with its speakers numbered from 0 in the order in which they appear."""
    numbers: dict[str, int] = {}
    return re.sub(
        r"<\|speaker:(\d+)\|>",
        lambda tag: f"<|speaker:{numbers.setdefault(tag[1], len(numbers))}|>",
        text,
    )
