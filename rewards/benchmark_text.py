"""How the field's benchmarks make texts comparable, rule by rule.

`seed_tts` and `seed_tts_zh` are seed-tts-eval's (Anastassiou et al., arXiv:2406.02430), `long_tts` and
`long_tts_zh` Long-TTS-Eval's (Wang et al., arXiv:2509.25131).
"""

from __future__ import annotations

import re
import string

from num2words import num2words

_CJK_MARKS = "！-／：-＠［-｀｛-､\u3000-\u3003〈-】〔-〟〰〾〿–—‘’‛-‟…‧﹏﹑﹔·"
"""The punctuation of the package zhon, which both benchmarks take out, as ranges of a regular expression."""

_MARKS = re.compile(f"[{_CJK_MARKS}{re.escape(string.punctuation)}]")
_MARKS_BUT_APOSTROPHE = re.compile(f"(?!')[{_CJK_MARKS}{re.escape(string.punctuation)}]")


def seed_tts(text: str) -> str:
    """Without punctuation, but for the straight apostrophe; lower case. Numbers stay as they are."""
    return _MARKS_BUT_APOSTROPHE.sub("", text).lower()


def seed_tts_zh(text: str) -> str:
    """Without punctuation, every character a word; the case of Latin letters counts.

    The benchmark also writes the transcript in simplified characters first. That isn't done here.
    """
    return " ".join("".join(_MARKS_BUT_APOSTROPHE.sub("", text).split()))


def long_tts(text: str) -> str:
    """Digits as English words, a space for each punctuation mark, lower case."""
    return " ".join(_MARKS.sub(" ", _digits_as_words(text).lower()).split())


def long_tts_zh(text: str) -> str:
    """A space for each punctuation mark, lower case, every Han character a word; digits stay."""
    return " ".join(re.sub(r"([\u4e00-\u9fff])", r" \1 ", _MARKS.sub(" ", text.lower())).split())


def _digits_as_words(text: str) -> str:
    return re.sub(r"\d{1,300}", lambda digits: f" {num2words(int(digits[0]))} ", text)  # more have no name
