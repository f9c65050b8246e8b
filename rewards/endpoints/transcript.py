"""What a transcription route answers: the text, log-probabilities and word times."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeGuard

from rewards.node import NodeError
from rewards.words import Word


def text_of(body: Mapping[str, Any]) -> str:
    """The transcript, empty where nothing was heard. Raises `NodeError` where the body has none."""
    text = body.get("text")
    if not isinstance(text, str):
        raise NodeError("the server's answer isn't a transcription: it has no text")
    return text.strip()


def tokens_of(body: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The transcript's tokens as written, each with its log-probability (natural).

    Tokens that are parts of one character stand together, with their mean. Raises `NodeError` where the
    server gives no log-probabilities, or some that aren't.
    """
    rows = body.get("logprobs")
    if not isinstance(rows, list):
        raise NodeError("the server's answer has no logprobs")
    found: list[tuple[str, float]] = []
    parts, logps = b"", list[float]()
    for row in rows:
        token, logp = _token(row)
        parts += token
        logps.append(logp)
        try:
            text = parts.decode()
        except UnicodeDecodeError:
            continue
        found.append((text, sum(logps) / len(logps)))
        parts, logps = b"", []
    if parts:
        raise NodeError("the server's logprobs end within a character")
    return found


def words_of(body: Mapping[str, Any]) -> list[Word]:
    """The words with their times. Raises `NodeError` where the server gives none, or some that aren't."""
    rows = body.get("words")
    if not isinstance(rows, list) or (not rows and text_of(body)):
        raise NodeError("the server's answer has no word times")
    return [_word(row) for row in rows]


def _token(row: Any) -> tuple[bytes, float]:
    if not isinstance(row, dict) or not isinstance(row.get("token"), str):
        raise NodeError("the server's logprobs hold no tokens")
    logp, raw = row.get("logprob"), row.get("bytes")
    if not _is_number(logp) or logp > 0:
        raise NodeError("the server's logprobs hold one that isn't a log-probability")
    if raw is None:
        return row["token"].encode(), float(logp)
    try:
        return bytes(raw), float(logp)
    except (TypeError, ValueError) as error:
        raise NodeError("the server's logprobs hold bytes that aren't") from error


def _word(row: Any) -> Word:
    if isinstance(row, dict):
        word, start, end = row.get("word"), row.get("start"), row.get("end")
        if isinstance(word, str) and _is_number(start) and _is_number(end):
            return Word(word.strip(), float(start), float(end))
    raise NodeError("the server's word times aren't words with a start and an end")


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
