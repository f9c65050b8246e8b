"""Answers of endpoints on disk, by the content of the question."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ResponseCache:
    """One JSON file per answer, in ``folder``. Files appear whole, so any number of processes may share it.

    Of processes that ask the same at the same time, each asks, and the last answer stays.
    """

    folder: Path

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer stored under ``key`` (hexadecimal), None if there is none that can be read."""
        path = self._path(key)
        try:
            body = json.loads(path.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            body = None
        if not isinstance(body, dict):
            log.warning("%s is damaged: asking again and replacing it", path)
            return None
        return body

    def put(self, key: str, body: Mapping[str, Any]) -> None:
        """Store ``body`` under ``key``, in place of what is there. Raises `OSError`."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".draft")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(body, file, ensure_ascii=False)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise

    def _path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.json"
