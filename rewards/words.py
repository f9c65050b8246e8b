"""When each word is spoken: what an ASR node hands to others as a text output, conventionally ``.words``.

JSON, one row a word: ``[word, start, end, [log-probabilities of its tokens]]``, times in seconds, the list
empty where the ASR gives none.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Word:
    """``text`` from ``start`` to ``end`` (seconds), with the log-probabilities of its tokens, if known."""

    text: str
    start: float
    end: float
    logps: tuple[float, ...] = ()


def write_words(words: Sequence[Word]) -> str:
    """The JSON text of ``words``."""
    rows = [
        [word.text, round(word.start, 3), round(word.end, 3), [round(p, 4) for p in word.logps]]
        for word in words
    ]
    return json.dumps(rows, ensure_ascii=False)


def read_words(text: str) -> list[Word]:
    """What `write_words` wrote."""
    return [Word(word, start, end, tuple(logps)) for word, start, end, logps in json.loads(text)]


def letters(word: str) -> str:
    """``word`` as words are compared: lower case, letters and digits only."""
    return "".join(c for c in word.casefold() if c.isalnum())


def match(wanted: Sequence[str], heard: Sequence[str]) -> list[int | None]:
    """For each wanted word the position of the heard one in its place, None where nothing is.

    A stretch heard as other words is in their place; words left out have none.
    """
    places: list[int | None] = [None] * len(wanted)
    matcher = difflib.SequenceMatcher(
        None, [letters(word) for word in wanted], [letters(word) for word in heard], autojunk=False
    )
    for kind, i, i_stop, j, j_stop in matcher.get_opcodes():
        if kind in ("equal", "replace"):
            for n in range(i_stop - i):
                places[i + n] = j + n * (j_stop - j) // (i_stop - i)
    return places


def locate(wanted: Sequence[str], words: Sequence[Word]) -> list[Word | None]:
    """For each wanted word the `Word` in its place, None where nothing is."""
    places = match(wanted, [word.text for word in words])
    return [None if place is None else words[place] for place in places]
