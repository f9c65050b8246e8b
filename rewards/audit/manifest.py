"""Audio that no run of ours made: a JSONL or CSV manifest of files, or a table of the `datasets` library."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from rewards.audit.clips import ClipSet, spread_evenly
from rewards.audit.groups import members
from rewards.tags import spoken_words
from rewards.types import Clip
from rl.errors import AuditError

MANIFESTS = (".jsonl", ".csv")
COLUMNS = ("audio", "text", "spoken", "instruction", "reference", "group", "step", "id")
"""What is read; the further columns of a row are the clip's ``meta``. Only ``audio`` and ``text`` must be."""


def from_manifest(path: Path, clips: int | None = None) -> ClipSet:
    """The clips of a ``.jsonl`` or ``.csv`` file, whose audio files are named relative to it.

    ``audio`` and ``reference`` are WAV or FLAC at any rate, channels are averaged. ``spoken`` is ``text``
    without its tags unless it is there; ``group`` joins the samples of one prompt (default: clips of the same
    text and instruction); ``step`` is a whole number. Raises `AuditError`, naming the line.
    """
    rows = _jsonl_rows(path) if path.suffix == ".jsonl" else _csv_rows(path)
    return _clip_set(rows, str(path), path.parent, clips)


def from_dataset_folder(path: Path, clips: int | None = None) -> ClipSet:
    """The clips of a dataset saved with ``save_to_disk``, with a manifest's columns. Raises `AuditError`."""
    from datasets import DatasetDict, load_from_disk

    try:
        found = load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise AuditError(f"{path}: can't be read as a dataset ({_one_line(error)}); save it again") from error
    if isinstance(found, DatasetDict):
        known = ", ".join(str(path / str(name)) for name in found)
        raise AuditError(f"{path}: holds several splits; name one: {known}")
    return _clip_set(_dataset_rows(found), str(path), path, clips)


def from_table(files: Sequence[str], source: str, clips: int | None = None) -> ClipSet:
    """The clips of Parquet files with a manifest's columns. Raises `AuditError`."""
    from datasets import Dataset

    try:
        found = Dataset.from_parquet(list(files))
    except (OSError, ValueError) as error:
        raise AuditError(f"{source}: can't be read as a dataset ({_one_line(error)})") from error
    return _clip_set(_dataset_rows(found), source, Path(files[0]).parent, clips)


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise AuditError(f"{path}, line {number}: not JSON ({error.msg})") from error
        if not isinstance(row, dict):
            raise AuditError(f"{path}, line {number}: must be a JSON object with audio and text")
        yield f"{path}, line {number}", row


def _csv_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(_text(path)))
    for row in reader:
        where = f"{path}, line {reader.line_num}"
        if None in row or None in row.values():
            raise AuditError(f"{where}: another number of fields than the header has")
        yield where, {name: value for name, value in row.items() if value != ""}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise AuditError(f"{path}: can't be read as UTF-8 text ({_one_line(error)})") from error


def _dataset_rows(dataset: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows, audio as it is stored: its decoding is ours."""
    from datasets import Audio

    for name, feature in dataset.features.items():
        if isinstance(feature, Audio):
            dataset = dataset.cast_column(name, Audio(decode=False))
    for number, row in enumerate(dataset):
        yield f"row {number}", {name: value for name, value in row.items() if value is not None}


def _clip_set(
    rows: Iterable[tuple[str, Mapping[str, Any]]], source: str, folder: Path, clips: int | None
) -> ClipSet:
    named = [(where, row) for where, row in rows]
    if not named:
        raise AuditError(f"{source}: holds no clips")
    for where, row in named:
        for column in ("audio", "text"):
            if column not in row:
                raise AuditError(f"{where}: has no {column}; columns that are read: {', '.join(COLUMNS)}")
    keys = [
        str(row.get("group", json.dumps([row["text"], row.get("instruction")], default=str)))
        for _, row in named
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    groups = np.array([numbers[key] for key in keys], np.int64)
    if clips is not None and clips < len(named):
        whole = list(members(groups))
        chosen = spread_evenly(len(whole), max(1, round(clips * len(whole) / len(named))))
        kept = sorted(int(place) for group in chosen for place in whole[group])
        named, groups = [named[place] for place in kept], groups[kept]
    ids = [str(row.get("id", number)) for number, (_, row) in enumerate(named)]
    seen: set[str] = set()
    for (where, _), name in zip(named, ids, strict=True):
        if name in seen:
            raise AuditError(f"{where}: the id {name} stands twice; clips are told apart by it")
        seen.add(name)
    return ClipSet(
        source=source,
        ids=ids,
        clips=[_clip(row, where, folder) for where, row in named],
        prompts=[str(row.get("group", row["text"])) for _, row in named],
        groups=groups,
        steps=np.array([_step(row.get("step", 0), where) for where, row in named], np.int64),
        batches=[np.arange(len(named))],
    )


def _step(value: Any, where: str) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise AuditError(f"{where}: step must be a whole number, not {value!r}") from None


def _clip(row: Mapping[str, Any], where: str, folder: Path) -> Clip:
    for column in ("text", "spoken", "instruction"):
        if not isinstance(row.get(column, ""), str):
            raise AuditError(f"{where}: {column} must be text")
    audio, rate = _read_audio(row["audio"], where, folder)
    reference, reference_rate = (None, None)
    if "reference" in row:
        reference, reference_rate = _read_audio(row["reference"], where, folder)
    meta = {name: value for name, value in row.items() if name not in COLUMNS or name == "instruction"}
    text = row["text"]
    spoken = row.get("spoken", spoken_words(text))
    return Clip(audio, rate, text, spoken, reference, reference_rate, meta)


def _read_audio(stored: Any, where: str, folder: Path) -> tuple[np.ndarray, int]:
    """Mono float32 ``[n]`` and its rate, of a path or of the `datasets` library's ``{bytes, path}``."""
    name = stored.get("path") if isinstance(stored, dict) else stored
    content = stored.get("bytes") if isinstance(stored, dict) else None
    if content is None and not isinstance(name, str):
        raise AuditError(f"{where}: audio must be a file's name")
    opened = io.BytesIO(content) if content is not None else folder / str(name)
    if isinstance(opened, Path) and not opened.is_file():
        raise AuditError(f"{where}: {opened} is missing")
    try:
        audio, rate = soundfile.read(opened, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise AuditError(f"{where}: {name} isn't WAV or FLAC ({_one_line(error)}); convert it") from error
    if len(audio) == 0:
        raise AuditError(f"{where}: {name} holds no audio; take the line out")
    return audio.mean(axis=1), rate


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
