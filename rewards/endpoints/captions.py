"""Several descriptions of one clip as one text, so that any captioner can stand before any judge."""

from __future__ import annotations

from collections.abc import Sequence

SEPARATOR = "\x1e"
"""ASCII's record separator. It is taken out of captions, which therefore can't add any to their number."""


def join_captions(captions: Sequence[str]) -> str:
    """One text that `split_captions` takes apart; of a single caption, that caption."""
    return SEPARATOR.join(caption.replace(SEPARATOR, " ") for caption in captions)


def split_captions(text: str) -> list[str]:
    """The captions in a text; of a text that `join_captions` didn't make, the text."""
    return text.split(SEPARATOR)
