"""When a server wants the next request: its Retry-After and rate-limit headers."""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import re
from collections.abc import Mapping

from rewards.endpoints.errors import AskError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"


class Pace:
    """What all requests of a batch hold to. ``deadline`` is in seconds of the event loop's clock."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._until = 0.0

    async def ready(self) -> None:
        """Wait until the server takes requests. Raises `AskError` where that is beyond the deadline."""
        clock = asyncio.get_running_loop().time
        while (wait := self._until - clock()) > 0:
            if self._until > self.deadline:
                raise AskError(f"the server asks to wait {wait:.0f} s, beyond the node's deadline")
            await asyncio.sleep(wait)

    def note(self, headers: Mapping[str, str]) -> None:
        """Hold back as long as an answer's headers ask."""
        pause = max(retry_after(headers), _exhausted(headers, "requests"), _exhausted(headers, "tokens"))
        self._until = max(self._until, asyncio.get_running_loop().time() + pause)


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds asked for by ``retry-after-ms`` or ``Retry-After`` (seconds, or an HTTP date); else 0."""
    exact = headers.get("retry-after-ms", "")
    if re.fullmatch(_NUMBER, exact):
        return float(exact) / 1000
    value = headers.get("retry-after", "").strip()
    if re.fullmatch(_NUMBER, value):
        return float(value)
    try:
        when = email.utils.parsedate_to_datetime(value)
    except ValueError:
        return 0.0
    if when.tzinfo is None:
        when = when.replace(tzinfo=datetime.UTC)
    return max(0.0, (when - datetime.datetime.now(datetime.UTC)).total_seconds())


def duration(text: str) -> float:
    """Seconds meant by ``6m0s``, ``1h2m3.5s``, ``20ms`` or a plain number; 0 for anything else."""
    text = text.strip()
    if re.fullmatch(_NUMBER, text):
        return float(text)
    if not re.fullmatch(rf"(?:{_NUMBER}(?:ms|[smhd]))+", text):
        return 0.0
    return sum(float(n) * _UNITS[unit] for n, unit in re.findall(rf"({_NUMBER})(ms|[smhd])", text))


def _exhausted(headers: Mapping[str, str], what: str) -> float:
    """Seconds until a quota that is used up starts afresh; 0 while some of it is left."""
    if headers.get(f"x-ratelimit-remaining-{what}", "").strip() != "0":
        return 0.0
    return duration(headers.get(f"x-ratelimit-reset-{what}", ""))
