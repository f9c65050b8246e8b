"""The checkpoints of a run folder."""

from __future__ import annotations

import json
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

CHECKPOINTS = "checkpoints"


def last_checkpoint(folder: Path) -> tuple[Path, int] | None:
    """The last whole checkpoint of a run and its optimiser steps; None where it saved none."""
    found = {
        int(path.parent.name.rpartition("-")[2]): path.parent
        for path in (folder / CHECKPOINTS).glob(f"checkpoint-*/{TRAINER_STATE_NAME}")
        if _is_whole(path)
    }
    return (found[max(found)], max(found)) if found else None


def _is_whole(state: Path) -> bool:
    """Whether a checkpoint's state, which is written last, was written to its end."""
    try:
        json.loads(state.read_text(encoding="utf-8"))
    except json.JSONDecodeError:
        return False
    return True
