"""``metrics.jsonl``: one line of named numbers per training step, readable while the run is alive.

A line is ``{"step": 12, "time": <seconds since 1970>, "<name>": number or null, ...}``; null is a missing
value and reads back as NaN. The names are listed in docs/run_folder.md.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from rl.errors import RunFolderError

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """Appends steps to a file; every line is handed to the system before `write` returns.

    ``resume_from``: the last step to keep. Later lines, and a line cut short by a crash, are dropped. None
    keeps nothing: the run starts afresh.
    """

    def __init__(self, path: str | Path, resume_from: int | None = None) -> None:
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        kept: list[dict[str, float]] = []
        if resume_from is not None:
            kept = [row for row in read_metrics(path) if row["step"] <= resume_from]
        partial = path.with_name(path.name + ".tmp")
        with partial.open("w", encoding="utf-8") as file:
            file.writelines(_line(row) for row in kept)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step. NaN is stored as null; an infinite value raises ValueError."""
        self._file.write(_line({"step": step, "time": time.time(), **metrics}))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_metrics(path: str | Path) -> list[dict[str, float]]:
    """The lines of a metrics file, in order; a missing value is NaN.

    A last line without its newline (a live or killed run) is left out. Raises RunFolderError when the file
    is absent or another line is damaged.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise RunFolderError(f"{path}: no such metrics file; is this a run folder?") from None
    except UnicodeDecodeError as error:
        raise RunFolderError(f"{path}: not UTF-8 text ({error.reason}); is it a metrics file?") from error
    *lines, _unfinished = text.split("\n")
    return [_parse(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def reward_metrics(
    values: Mapping[str, np.ndarray], total: np.ndarray, gated: np.ndarray, group_ids: np.ndarray
) -> dict[str, float]:
    """What a step's rewards look like, under the names that plots, report and live view know.

    ``values[output]``, ``total``: float ``[B]``, NaN where missing; ``gated``: bool ``[B]``; ``group_ids``:
    int ``[B]``. For the total and each output: ``reward/<name>/mean``; ``reward/<name>/std``, the
    sample standard deviation (n - 1) within a group, averaged over the groups with two values or more; and
    ``reward/<name>/missing``, the share of clips without a value that no gate explains. ``reward/gated`` is
    the share of gated clips.
    """
    metrics = {"reward/gated": float(np.mean(gated))}
    for name, column in {"total": total, **values}.items():
        metrics[f"reward/{name}/mean"] = _mean(column)
        metrics[f"reward/{name}/std"] = within_group_std(column, group_ids)
        metrics[f"reward/{name}/missing"] = float(np.mean(np.isnan(column) & ~gated))
    return metrics


def within_group_std(column: np.ndarray, group_ids: np.ndarray) -> float:
    """Sample standard deviation (n - 1) inside each group, averaged over groups with two values or more.

    NaNs are left out; NaN when no group has two values.
    """
    groups = [column[(group_ids == group) & ~np.isnan(column)] for group in np.unique(group_ids)]
    return _mean(np.array([np.std(group, ddof=1) for group in groups if len(group) > 1]))


def _mean(column: np.ndarray) -> float:
    present = column[~np.isnan(column)]
    return float(present.mean()) if len(present) else math.nan


def _line(row: Mapping[str, float]) -> str:
    storable = {name: None if math.isnan(value) else value for name, value in row.items()}
    return json.dumps(storable, allow_nan=False) + "\n"


def _parse(line: str, where: str) -> dict[str, float]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{where}: not JSON ({error.msg}); delete the line") from error
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise RunFolderError(f"{where}: not a metrics line (no `step`); delete the line")
    return {name: math.nan if value is None else value for name, value in row.items()}
