"""Comparing a transcript with the text that should be heard."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache

import jiwer
from whisper.normalizers import BasicTextNormalizer, EnglishTextNormalizer

from rewards.benchmark_text import long_tts, long_tts_zh, seed_tts, seed_tts_zh
from rewards.node import NodeError

BENCHMARKS: dict[str, Callable[[str], str]] = {
    "seed_tts": seed_tts,
    "seed_tts_zh": seed_tts_zh,
    "long_tts": long_tts,
    "long_tts_zh": long_tts_zh,
}
NORMALISERS = ("english", "basic", "cjk", "none", *BENCHMARKS)

_UNSPACED = "\u3005\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Han characters and kana, which are written without spaces, as ranges of a regular expression."""


def error_rate(reference: str, hypothesis: str, unit: str, normaliser: str, *, cut: bool = True) -> float:
    """Edit distance over the reference's length, in characters (``char``, CER) or words (``word``, WER).

    Both texts are normalised first: ``english`` lowers case, drops punctuation and bracketed text, and writes
    numbers as digits; ``basic`` does without the English rules; ``cjk`` is for Chinese and Japanese:
    full-width and half-width forms become one, spaces beside their characters don't count, and each of those
    characters is a word, so that ``word`` is the mixed error rate; `rewards.benchmark_text` has the
    benchmarks' own. ``cut``: at most 1, since a transcript that loops would score 20 and drown a batch.
    Raises `NodeError` where no reference is left.
    """
    if unit == "char":
        wanted, heard = (_normaliser(normaliser)(text).strip() for text in (reference, hypothesis))
    else:
        wanted, heard = (" ".join(units(text, normaliser)) for text in (reference, hypothesis))
    if not wanted:
        raise NodeError("no text to compare with is left after normalising")
    rate = float((jiwer.cer if unit == "char" else jiwer.wer)(wanted, heard))
    return min(rate, 1.0) if cut else rate


def units(text: str, normaliser: str) -> list[str]:
    """The words of ``text``, normalised; of a script without spaces the single characters."""
    return re.findall(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+", _normaliser(normaliser)(text))


@cache
def _normaliser(name: str) -> Callable[[str], str]:
    kinds: dict[str, Callable[[], Callable[[str], str]]] = {
        "english": _english,
        "basic": BasicTextNormalizer,
        "cjk": lambda: _cjk,
        "none": lambda: str,
    }
    return BENCHMARKS[name] if name in BENCHMARKS else kinds[name]()


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


def _cjk(text: str) -> str:
    """One width, lower case, no punctuation, no spaces beside characters of a script without spaces."""
    text = unicodedata.normalize("NFKC", text).casefold()
    text = "".join(" " if unicodedata.category(c)[0] in "PSZC" else c for c in text)
    text = re.sub(rf"(?<=[{_UNSPACED}])\s+|\s+(?=[{_UNSPACED}])", "", text)
    return " ".join(text.split())
