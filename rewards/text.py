"""Comparing a transcript with the text that should be heard."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import jiwer
from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

from rewards.node import NodeError

NORMALISERS = ("english", "basic", "none")


def error_rate(reference: str, hypothesis: str, unit: str, normaliser: str) -> float:
    """Edit distance over the reference's length, in characters (``char``, CER) or words (``word``, WER).

    Both texts are normalised first: ``english`` lowers case, drops punctuation and bracketed text, and writes
    numbers as digits; ``basic`` does without the English rules. The rate is cut at 1, since a
    transcript that loops would score 20 and drown a batch. Raises `NodeError` where no reference is left.
    """
    normalise = _normaliser(normaliser)
    reference, hypothesis = normalise(reference).strip(), normalise(hypothesis).strip()
    if not reference:
        raise NodeError("no text to compare with is left after normalising")
    rate = jiwer.cer if unit == "char" else jiwer.wer
    return min(float(rate(reference, hypothesis)), 1.0)


@cache
def _normaliser(name: str) -> Callable[[str], str]:
    kinds: dict[str, Callable[[], Callable[[str], str]]] = {
        "english": _english,
        "basic": BasicTextNormalizer,
        "none": lambda: str,
    }
    return kinds[name]()


def _english() -> Callable[[str], str]:
    """Whisper's English rules, made to agree with what Whisper writes.

    They turn the words "one two three" into 123, but not the "1-2-3" that Whisper may hear in their place,
    and they keep a full stop at the end of a text.
    """
    normalise = EnglishTextNormalizer()

    def english(text: str) -> str:
        text = re.sub(r"(?<=\b\d)[\s,-]+(?=\d\b)", "", text)
        words = [word.strip(".") for word in normalise(text).split()]
        return re.sub(r"(?<=\d) (?=\d)", "", " ".join(word for word in words if word))

    return english
