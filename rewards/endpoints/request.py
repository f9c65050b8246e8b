"""One question to an endpoint."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Body = dict[str, Any]
"""The JSON object that a server answers with."""


@dataclass(frozen=True)
class Request:
    """One question: the route's ``parameters``, and for a transcription the ``audio`` (WAV bytes).

    ``repeat`` tells apart questions that are alike and should be answered afresh.
    """

    route: Literal["chat", "transcription"]
    parameters: Mapping[str, Any]
    audio: bytes = field(default=b"", repr=False)
    repeat: int = 0

    def key(self) -> str:
        """Names the question by its content, model and all parameters included; the server has no part."""
        content = [self.route, self.parameters, hashlib.sha256(self.audio).hexdigest(), self.repeat]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
