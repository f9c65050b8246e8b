"""What the suites' readers share: finding and reading a benchmark's files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rl.errors import EvalError
from rollouts.types import Prompt

SHIPPED = Path(__file__).parent.parent / "assets" / "evals"
"""Samples in the benchmarks' formats, a folder for each suite: what ``tiny`` means."""


def read_items(suite: str, data: str) -> list[Prompt]:
    """The prompts of a suite's data set: a file or folder, or ``tiny`` for the sample that ships.

    An item's ``meta`` may name its ``kind``, by which figures are also given, and the ``item`` that several
    prompts belong to, which are resampled together. Raises `EvalError` or `PromptError`.
    """
    path = SHIPPED / suite if data == "tiny" else Path(data)
    if not path.exists():
        raise EvalError(
            f"--data {data}: no such file or folder; name the benchmark's, or tiny for the sample that ships"
        )
    prompts: list[Prompt] = import_module(f"rl.evals.{suite}").read(path)
    if not prompts:
        raise EvalError(f"--data {data}: holds no item")
    seen: set[str] = set()
    for prompt in prompts:
        if Path(prompt.id).name != prompt.id or prompt.id.startswith("."):
            raise EvalError(f"--data {data}: the id {prompt.id!r} can't be a file's name; change it")
        if prompt.id in seen:
            raise EvalError(f"--data {data}: the id {prompt.id} stands twice; audio is matched by it")
        seen.add(prompt.id)
    return prompts


def the_file(path: Path, *patterns: str) -> Path:
    """``path``, or the one file in that folder whose name fits; earlier ``patterns`` go first.

    Raises `EvalError` where there is none, or more than one.
    """
    if path.is_file():
        return path
    for pattern in patterns:
        found = sorted(path.glob(pattern))
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(file.name for file in found[:5])
            raise EvalError(f"--data {path}: holds {len(found)} of {pattern} ({names}); name one of them")
    raise EvalError(f"--data {path}: holds no {' or '.join(patterns)}; name the benchmark's file or folder")


def numbered_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that isn't blank, after where it stands. Raises `EvalError`."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # texts may hold other separators
    except (OSError, UnicodeDecodeError) as error:
        raise EvalError(f"{path}: can't be read as UTF-8 text ({_one_line(error)})") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield f"{path}, line {number}", line


def json_lines(path: Path, texts: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The objects of a JSON Lines file, after where each stands; each has the ``texts`` as text.

    Raises `EvalError`.
    """
    for where, line in numbered_lines(path):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise EvalError(f"{where}: not JSON ({error.msg})") from error
        if not isinstance(row, dict):
            raise EvalError(f"{where}: must be a JSON object with {', '.join(texts)}")
        for name in texts:
            if not isinstance(row.get(name), str) or not row[name].strip():
                raise EvalError(f"{where}: `{name}` is missing or not text")
        yield where, row


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
