"""Texts with ``<|speaker:N|>`` and ``[vocal]`` tags: what they ask for, and the confidence that weighs tags.

S2's reward is the ASR's confidence of the target text with more weight on speaker tags (technical report,
4.3). The weights and the way of averaging aren't published: those here are ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rewards.node import NodeError
from rewards.words import letters, match

Kind = Literal["text", "speaker", "vocal"]

TAG = re.compile(r"(<\|[^<>|]*\|>|\[[^\[\]]*\])")
_SPEAKER = re.compile(r"<\|speaker:(\d+)\|>")


@dataclass(frozen=True)
class Turn:
    """Words ``start`` to ``stop`` (exclusive) of a speaker; None before the first speaker tag."""

    speaker: str | None
    start: int
    stop: int


@dataclass(frozen=True)
class Instruction:
    """A vocal tag and the words it governs: up to the next vocal tag behind a word, or the turn's end."""

    tag: str
    start: int
    stop: int
    speaker: str | None


@dataclass(frozen=True)
class Target:
    """A tagged text: its words, the turns that hold any, and its vocal instructions, in their order."""

    words: tuple[str, ...]
    turns: tuple[Turn, ...]
    instructions: tuple[Instruction, ...]


def parse_target(text: str) -> Target:
    """Words, turns and instructions of ``text``: speakers as their tags' digits, vocal tags in lower case."""
    words: list[str] = []
    turns: list[Turn] = []
    instructions: list[Instruction] = []
    opened: list[tuple[str, int]] = []
    speaker: str | None = None
    start = 0

    def close() -> None:
        instructions.extend(Instruction(tag, begin, len(words), speaker) for tag, begin in opened)
        opened.clear()

    for piece in TAG.split(text):
        named = _SPEAKER.fullmatch(piece)
        if named:
            close()
            if len(words) > start:
                turns.append(Turn(speaker, start, len(words)))
            speaker, start = named.group(1), len(words)
        elif piece.startswith("[") and TAG.fullmatch(piece):
            if opened and opened[-1][1] < len(words):
                close()
            opened.append((" ".join(piece[1:-1].lower().split()), len(words)))
        elif not TAG.fullmatch(piece):
            words += piece.split()
    close()
    if len(words) > start:
        turns.append(Turn(speaker, start, len(words)))
    return Target(tuple(words), tuple(turns), tuple(instructions))


def tag_weighted_confidence(tokens: Sequence[tuple[Kind, float]], weights: Mapping[Kind, float]) -> float:
    """Confidence, 0 to 1, of a target's tokens, given as kind and log-probability each.

    exp(sum(w * logp) / sum(w)) with w the weight of the token's kind: the weighted geometric mean of the
    probabilities. Raises `NodeError` where no token has a weight.
    """
    total = sum(weights[kind] for kind, _ in tokens)
    if total <= 0:
        raise NodeError("no token of the text has a weight")
    return math.exp(sum(weights[kind] * logp for kind, logp in tokens) / total)


def confidences_of_heard(
    text: str, heard: Sequence[tuple[str, float]], floor: float
) -> list[tuple[Kind, float]]:
    """Kind and log-probability of every word and tag of ``text``, from an ASR that writes tags itself.

    ``heard`` holds the transcript's tokens in order, as written, each with its log-probability. A word or tag
    has the mean of the tokens that it is made of; one that wasn't heard in its place has log(``floor``).
    """
    said, logps = _heard_units(heard)
    wanted = _units(text)
    result: list[tuple[Kind, float]] = []
    places = match([_key(unit) for unit in wanted], [_key(unit) for unit in said])
    for unit, place in zip(wanted, places, strict=True):
        right = place is not None and _key(said[place]) == _key(unit)
        result.append((_kind(unit), logps[place] if place is not None and right else math.log(floor)))
    return result


def _units(text: str) -> list[str]:
    """The words and tags of ``text`` in their order."""
    return [
        unit for piece in TAG.split(text) for unit in ([piece] if TAG.fullmatch(piece) else piece.split())
    ]


def _key(unit: str) -> str:
    """As units are compared; tags get letters around them, so that ``[high]`` isn't the word."""
    return letters(unit if _kind(unit) == "text" else f"tag{unit}tag")


def _kind(unit: str) -> Kind:
    if _SPEAKER.fullmatch(unit):
        return "speaker"
    return "vocal" if TAG.fullmatch(unit) else "text"


def _heard_units(heard: Sequence[tuple[str, float]]) -> tuple[list[str], list[float]]:
    """The units of a transcript given by tokens, and each one's mean log-probability over its tokens."""
    text = "".join(token for token, _ in heard)
    owner = [i for i, (token, _) in enumerate(heard) for _ in token]
    units, logps, at = _units(text), [], 0
    for unit in units:
        begin = text.index(unit, at)
        at = begin + len(unit)
        tokens = sorted(set(owner[begin:at]))
        logps.append(sum(heard[i][1] for i in tokens) / len(tokens))
    return units, logps


def spoken_words(text: str) -> str:
    """The text without ``<|...|>`` and ``[...]`` tags, blanks collapsed."""
    return " ".join(TAG.sub(" ", text).split())
