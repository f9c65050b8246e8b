"""The answer of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rl.errors import AuralignError

Verdict = Literal["ok", "warning", "cannot run"]


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found there, whether a run is possible with it, and what to do, in one
    line."""

    name: str
    found: str
    verdict: Verdict = "ok"
    remedy: str = ""


def failed(name: str, error: AuralignError, remedy: str = "", verdict: Verdict = "cannot run") -> Check:
    """``error``, whose one line ends in its remedy behind a semicolon; ``remedy``: where it has none."""
    text = " ".join(str(error).split())
    found, semicolon, told = text.rpartition("; ")
    return Check(name, found, verdict, told) if semicolon else Check(name, text, verdict, remedy)


def gib(size: float) -> str:
    """Bytes in words: ``1.5 GiB``, and small ones ``12 MiB``."""
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
