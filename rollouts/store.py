"""The rollout store: one Parquet file per step, holding everything needed to hear and re-score it.

A file opens with ``datasets.load_dataset("parquet", data_files=...)``; its ``audio`` column plays. The
columns are described in docs/rollouts.md, and `SCHEMA_VERSION` is in the file's metadata.

Audio is kept as 16-bit FLAC. So that a stored clip scores exactly as it did in the run, round the codec's
output with `quantise` once, before scoring: the store then gives back the very same array.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import soundfile
from datasets import Audio, Features, List, Value

from rl.errors import RunFolderError
from rollouts.types import Prompt, Reference, Rollout, Turn

SCHEMA_VERSION = 3
_READABLE = (2, 3)  # 2 knew no `turns`
FOLDER = "rollouts"
Split = Literal["train", "eval_before", "eval_after", "sample"]

_PCM_STEPS = 32768.0  # 16-bit levels per unit of amplitude
_REWARD = "reward."
_METADATA_KEY = b"auralign"


@dataclass
class StepRecord:
    """B scored rollouts of one step.

    ``audio``: per rollout, float32 ``[n]`` on the 16-bit grid (see `quantise`), or None where the codec's
    output wasn't finite. ``group_ids``: int64 ``[B]``, equal for the samples of one prompt. ``values``:
    ``{node output: float64 [B]}``, ``total`` and ``advantages``: float64 ``[B]``; NaN is missing, and
    ``reasons[b]`` says why. ``gated``: bool ``[B]``, True where a gate closed: the total is the gate's floor
    and nodes behind it have no value. ``details[b]``: JSON-able, per node. ``submitted``: int64 ``[B]``, the
    place of each clip in the order in which the reward graph saw them, on which its batches depend.
    """

    step: int
    split: Split
    config_hash: str
    sample_rate: int
    rollouts: list[Rollout]
    audio: list[np.ndarray | None]
    group_ids: np.ndarray
    values: dict[str, np.ndarray]
    total: np.ndarray
    advantages: np.ndarray
    gated: np.ndarray
    reasons: list[dict[str, str]]
    details: list[dict[str, Any]]
    submitted: np.ndarray


def quantise(audio: np.ndarray) -> np.ndarray:
    """Round ``audio`` (float ``[n]``, full scale +-1) to the 16-bit grid; float32 ``[n]``.

    Idempotent. Louder samples are clipped to [-1, 1 - 2**-15]. Audio with a non-finite sample is returned
    as float32, unrounded: it can be neither scored nor stored.
    """
    audio = np.asarray(audio, dtype=np.float32)
    if not np.isfinite(audio).all():
        return audio
    levels = np.clip(np.rint(audio * _PCM_STEPS), -_PCM_STEPS, _PCM_STEPS - 1)
    return (levels / _PCM_STEPS + 0.0).astype(np.float32)  # + 0.0: no negative zeros, as in 16-bit files


def encode_flac(audio: np.ndarray, sample_rate: int) -> bytes:
    """A 16-bit mono FLAC file of ``audio`` (float32 ``[n]``, n > 0, on the 16-bit grid), without loss.

    Raises ValueError when ``audio`` is off the grid.
    """
    if not np.array_equal(quantise(audio), audio):
        raise ValueError("audio is off the 16-bit grid; apply quantise() to what the codec gives, once")
    buffer = io.BytesIO()
    levels = (audio * _PCM_STEPS).astype(np.int16)
    soundfile.write(buffer, levels, sample_rate, format="FLAC", subtype="PCM_16")
    return buffer.getvalue()


def step_path(run_dir: str | Path, step: int, split: Split = "train") -> Path:
    """``<run>/rollouts/step_000012.parquet``; the other splits' files start with the split's name."""
    prefix = "step" if split == "train" else split
    return Path(run_dir) / FOLDER / f"{prefix}_{step:06d}.parquet"


def write_step(path: str | Path, record: StepRecord) -> None:
    """Write ``record`` to ``path``: a reader sees the whole file or none, also after a crash.

    Raises ValueError when arrays disagree in length, audio is off the 16-bit grid, or details aren't JSON.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    table = _to_table(record)
    partial = path.with_name(path.name + ".tmp")
    with partial.open("wb") as file:
        pq.write_table(table, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_folder(path.parent)


def read_step(path: str | Path) -> StepRecord:
    """Read what `write_step` wrote: codes, log-probs, values and audio come back bit for bit.

    Raises RunFolderError when the file is missing, cut short, or not of this schema version.
    """
    path = Path(path)
    try:
        table = pq.read_table(path)
    except FileNotFoundError:
        raise RunFolderError(f"{path}: no such rollout file") from None
    except (pa.ArrowInvalid, OSError) as error:
        reason = " ".join(str(error).split())
        raise RunFolderError(f"{path}: cut short or not Parquet ({reason}); delete it") from error
    metadata = (table.schema.metadata or {}).get(_METADATA_KEY)
    if metadata is None:
        raise RunFolderError(f"{path}: not a rollout file (its metadata has no `auralign` entry)")
    info = json.loads(metadata)
    if info["schema"] not in _READABLE:
        raise RunFolderError(
            f"{path}: rollout schema {info['schema']}, but this version reads 2 and {SCHEMA_VERSION}; "
            "use the Auralign version that wrote it"
        )
    return _from_table(table, info)


def iter_steps(run_dir: str | Path, split: Split = "train") -> Iterator[StepRecord]:
    """The stored steps of one split, in order.

    Raises RunFolderError when the folder has none, or holds a half-written file.
    """
    folder = Path(run_dir) / FOLDER
    for partial in sorted(folder.glob("*.parquet.tmp")):
        raise RunFolderError(
            f"{partial}: half-written; wait for the run that writes it, or delete it if none does"
        )
    paths = stored_steps(run_dir, split)
    if not paths:
        raise RunFolderError(f"{folder}: no rollouts of split `{split}`; is this a run folder?")
    for path in paths:
        yield read_step(path)


def discard_steps_after(run_dir: str | Path, step: int) -> None:
    """Delete the training steps above ``step`` and half-written files: what a resume will write again."""
    for path in stored_steps(run_dir, "train"):
        if int(path.stem.rsplit("_", 1)[1]) > step:
            path.unlink()
    for partial in (Path(run_dir) / FOLDER).glob("*.parquet.tmp"):
        partial.unlink()


def stored_steps(run_dir: str | Path, split: Split) -> list[Path]:
    """The files of one split, in the order of their steps; empty where there are none."""
    prefix = step_path(run_dir, 0, split).stem.removesuffix("_000000")
    return sorted((Path(run_dir) / FOLDER).glob(f"{prefix}_{'[0-9]' * 6}.parquet"))


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _features(record: StepRecord) -> Features:
    codes = List(List(Value("int32")))
    return Features(
        {
            "audio": Audio(sampling_rate=record.sample_rate),
            "audio_samples": Value("int64"),
            "text": Value("string"),
            "spoken": Value("string"),
            "prompt_id": Value("string"),
            "prompt_meta": Value("string"),
            "references": List({"text": Value("string"), "codes": codes}),
            "split": Value("string"),
            "step": Value("int64"),
            "group_id": Value("int64"),
            "sample_index": Value("int64"),
            "seed": Value("int64"),
            "policy_version": Value("int64"),
            "codes": codes,
            "logprobs": List(List(Value("float32"))),
            "end_logprob": Value("float64"),
            "finish_reason": Value("string"),
            "turns": List(
                {"text": Value("string"), "frames": Value("int64"), "end_logprob": Value("float64")}
            ),
            "total": Value("float64"),
            "advantage": Value("float64"),
            "gated": Value("bool"),
            **{_REWARD + name: Value("float64") for name in record.values},
            "missing": Value("string"),
            "details": Value("string"),
            "submitted": Value("int64"),
            "config_hash": Value("string"),
        }
    )


def _to_table(record: StepRecord) -> pa.Table:
    rollouts = record.rollouts
    _check_lengths(record)
    columns: dict[str, Sequence[Any]] = {
        "audio": [
            _encode(audio, record.sample_rate, _clip_name(record, i)) for i, audio in enumerate(record.audio)
        ],
        "audio_samples": [None if audio is None else len(audio) for audio in record.audio],
        "text": [r.prompt.text for r in rollouts],
        "spoken": [r.prompt.spoken for r in rollouts],
        "prompt_id": [r.prompt.id for r in rollouts],
        "prompt_meta": [_dumps(r.prompt.meta) for r in rollouts],
        "references": [
            [{"text": ref.text, "codes": ref.codes.tolist()} for ref in r.prompt.references] for r in rollouts
        ],
        "split": [record.split] * len(rollouts),
        "step": [record.step] * len(rollouts),
        "group_id": record.group_ids.tolist(),
        "sample_index": [r.sample_index for r in rollouts],
        "seed": [r.seed for r in rollouts],
        "policy_version": [r.policy_version for r in rollouts],
        "codes": [r.codes.tolist() for r in rollouts],
        "logprobs": [r.logprobs.tolist() for r in rollouts],
        "end_logprob": [r.end_logprob for r in rollouts],
        "finish_reason": [r.finish_reason for r in rollouts],
        "turns": [[asdict(turn) for turn in r.turns] for r in rollouts],
        "total": _nullable(record.total),
        "advantage": _nullable(record.advantages),
        "gated": record.gated.tolist(),
        **{_REWARD + name: _nullable(column) for name, column in record.values.items()},
        "missing": [_dumps(reasons) for reasons in record.reasons],
        "details": [_dumps(details) for details in record.details],
        "submitted": record.submitted.tolist(),
        "config_hash": [record.config_hash] * len(rollouts),
    }
    schema = _features(record).arrow_schema
    info = {
        "schema": SCHEMA_VERSION,
        "step": record.step,
        "split": record.split,
        "config_hash": record.config_hash,
        "sample_rate": record.sample_rate,
        "codebooks": rollouts[0].codes.shape[1],
    }
    metadata = {**schema.metadata, _METADATA_KEY: json.dumps(info).encode()}
    return pa.Table.from_pydict(columns, schema=schema.with_metadata(metadata))


def _from_table(table: pa.Table, info: dict[str, Any]) -> StepRecord:
    names = [name.removeprefix(_REWARD) for name in table.column_names if name.startswith(_REWARD)]
    rows = table.drop_columns([_REWARD + name for name in names]).to_pylist()
    codebooks = info["codebooks"]
    return StepRecord(
        step=info["step"],
        split=info["split"],
        config_hash=info["config_hash"],
        sample_rate=info["sample_rate"],
        rollouts=[_rollout(row, codebooks) for row in rows],
        audio=[_decode(row["audio"], row["audio_samples"]) for row in rows],
        group_ids=_column(table, "group_id", np.int64),
        values={name: _column(table, _REWARD + name, np.float64) for name in names},
        total=_column(table, "total", np.float64),
        advantages=_column(table, "advantage", np.float64),
        gated=_column(table, "gated", np.bool_),
        reasons=[json.loads(row["missing"]) for row in rows],
        details=[json.loads(row["details"]) for row in rows],
        submitted=_column(table, "submitted", np.int64),
    )


def _rollout(row: dict[str, Any], codebooks: int) -> Rollout:
    references = tuple(
        Reference(ref["text"], np.array(ref["codes"], dtype=np.int64).reshape(-1, codebooks))
        for ref in row["references"]
    )
    return Rollout(
        prompt=Prompt(
            row["prompt_id"], row["text"], row["spoken"], references, json.loads(row["prompt_meta"])
        ),
        sample_index=row["sample_index"],
        seed=row["seed"],
        codes=np.array(row["codes"], dtype=np.int64).reshape(-1, codebooks),
        logprobs=np.array(row["logprobs"], dtype=np.float32).reshape(-1, codebooks),
        end_logprob=row["end_logprob"],
        finish_reason=row["finish_reason"],
        policy_version=row["policy_version"],
        turns=tuple(Turn(**turn) for turn in row.get("turns", [])),
    )


def _check_lengths(record: StepRecord) -> None:
    if record.split not in get_args(Split):
        raise ValueError(f"split {record.split!r} is none of {get_args(Split)}")
    count = len(record.rollouts)
    if count == 0:
        raise ValueError("a step without rollouts can't be stored")
    if any(rollout.prompt.history for rollout in record.rollouts):
        raise ValueError("a rollout of a part of a conversation can't be stored; store the whole")
    columns: dict[str, Any] = {
        "audio": record.audio,
        "group_ids": record.group_ids,
        "total": record.total,
        "advantages": record.advantages,
        "gated": record.gated,
        "reasons": record.reasons,
        "details": record.details,
        "submitted": record.submitted,
        **record.values,
    }
    for name, column in columns.items():
        if len(column) != count:
            raise ValueError(f"{name} has {len(column)} rows for {count} rollouts")


def _clip_name(record: StepRecord, index: int) -> str:
    rollout = record.rollouts[index]
    return f"{rollout.prompt.id}_{rollout.sample_index}_{record.step:06d}.flac"


def _encode(audio: np.ndarray | None, sample_rate: int, name: str) -> dict[str, Any] | None:
    if audio is None or len(audio) == 0:  # FLAC has no empty stream; `audio_samples` tells the two apart
        return None
    return {"bytes": encode_flac(audio, sample_rate), "path": name}


def _decode(stored: dict[str, Any] | None, samples: int | None) -> np.ndarray | None:
    if samples is None:
        return None
    if stored is None:
        return np.zeros(0, dtype=np.float32)
    levels, _ = soundfile.read(io.BytesIO(stored["bytes"]), dtype="int16")
    return (levels / _PCM_STEPS).astype(np.float32)


def _nullable(column: np.ndarray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in column.tolist()]


def _column(table: pa.Table, name: str, dtype: type) -> np.ndarray:
    """A column as an array; a null becomes NaN."""
    return table.column(name).to_numpy().astype(dtype)


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
