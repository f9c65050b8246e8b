"""What an evaluation leaves: ``eval.json`` for machines, ``eval.md`` for people, ``items.jsonl``, and audio.

Every file is written under another name and renamed: a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rewards.endpoints.wav import wav_bytes
from rl.errors import EvalError
from rl.evals.run import Result
from rl.evals.sides import ENDINGS, Side
from rl.evals.tables import markdown
from rollouts.store import encode_flac

FORMAT = 1
JSON_FILE, MARKDOWN_FILE, ITEMS_FILE, AUDIO_FOLDER = "eval.json", "eval.md", "items.jsonl", "audio"


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write all files of ``result``, sampled audio included; returns their paths. Raises `EvalError`."""
    files = {
        JSON_FILE: json.dumps(_nulls(as_json(result)), ensure_ascii=False, allow_nan=False, indent=1) + "\n",
        MARKDOWN_FILE: markdown(result),
        ITEMS_FILE: "".join(
            json.dumps(_nulls(row), ensure_ascii=False, allow_nan=False) + "\n" for row in item_rows(result)
        ),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = [_write(folder / name, text.encode()) for name, text in files.items()]
        if result.request.audio is None:
            paths.append(_write_audio(folder / AUDIO_FOLDER, result))
    except OSError as error:
        raise EvalError(f"{folder}: can't be written ({error.strerror}); name another --out") from error
    return paths


def as_json(result: Result) -> dict[str, Any]:
    """All figures; NaNs are still NaN in it."""
    request, recipe = result.request, result.recipe
    return {
        "format": FORMAT,
        "suite": request.suite,
        "data": request.data,
        "evaluated": result.side.name,
        "against": None if result.other is None else result.other.name,
        "config_hash": result.config_hash,
        "items": len(result.prompts),
        "recipe": {
            "file": recipe.file,
            "nodes": recipe.nodes,
            "figures": {name: asdict(figure) for name, figure in recipe.figures.items()},
            "pairs": recipe.pairs,
        },
        "figures": [asdict(line) for line in result.lines],
        "differences": [asdict(one) for one in result.differences],
        "preferences": [
            {name: value for name, value in asdict(one).items() if name != "scores"}
            for one in result.preferences
        ],
    }


def item_rows(result: Result) -> Iterator[dict[str, Any]]:
    """One object for each item: its figures, every node's value and details, and why values are missing."""
    for i, prompt in enumerate(result.prompts):
        row: dict[str, Any] = {
            "id": prompt.id,
            "kind": prompt.meta.get("kind"),
            "text": prompt.text,
            "spoken": prompt.spoken,
            "figures": {name: float(column[i]) for name, column in result.values.items()},
            **_of_side(result.side, i),
        }
        if result.other is not None:
            row["against"] = _of_side(result.other, i)
            row["preferred"] = {one.judge: float(one.scores[i]) for one in result.preferences}
        yield row


def _of_side(side: Side, i: int) -> dict[str, Any]:
    scores, clip = side.scores, side.clips[i]
    return {
        "seconds": len(clip.audio) / clip.sample_rate,
        "values": {name: float(column[i]) for name, column in scores.values.items()},
        "missing": {name: why for name, why in scores.reasons[i].items() if name != "total"},
        "details": scores.details[i],
    }


def _write_audio(folder: Path, result: Result) -> Path:
    """The sampled clips as ``--audio`` reads them, but for any that isn't finite; past ones are replaced.

    FLAC can't hold a clip of no length, WAV can.
    """
    folder.mkdir(exist_ok=True)
    for prompt, clip in zip(result.prompts, result.side.clips, strict=True):
        for ending in ENDINGS:
            (folder / f"{prompt.id}{ending}").unlink(missing_ok=True)
        if len(clip.audio) == 0:
            _write(folder / f"{prompt.id}.wav", wav_bytes(clip.audio, clip.sample_rate))
        elif np.isfinite(clip.audio).all():
            _write(folder / f"{prompt.id}.flac", encode_flac(clip.audio, clip.sample_rate))
    return folder


def _write(path: Path, content: bytes) -> Path:
    partial = path.with_name(path.name + ".tmp")
    partial.write_bytes(content)
    return partial.replace(path)


def _nulls(content: Any) -> Any:
    """``content`` with every NaN and infinity, which JSON doesn't know, as None."""
    if isinstance(content, dict):
        return {name: _nulls(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_nulls(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
