"""Where an audit's clips come from: a run folder, its Parquet files, a dataset, or a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rewards.audit.clips import ClipSet, joined, spread_evenly
from rewards.audit.manifest import MANIFESTS, from_dataset_folder, from_manifest, from_table
from rewards.types import Clip, Scores
from rl.config import load_config
from rl.errors import AuditError
from rl.run_folder import CONFIG_FILE
from rl.schema import RunConfig
from rl.scoring import clip_of
from rollouts.store import FOLDER, Split, StepRecord, read_step, stored_steps

SPLITS: tuple[Split, ...] = get_args(Split)
_OWN_METADATA = b"auralign"


def read_clips(source: str | Path, split: Split = "train", clips: int | None = None) -> ClipSet:
    """The clips of ``source``: a run folder, a Parquet file or a folder of them, a dataset saved by
    `datasets`, or a manifest (see `rewards.audit.manifest`).

    ``split``: of a run folder; without training rollouts, what `rl-rollout` sampled. ``clips``: about how
    many to take, null for all: whole steps of a run, whole groups otherwise, evenly spaced. Raises
    `AuditError` or `RunFolderError` with one line that names the file.
    """
    path = Path(source)
    if not path.exists():
        raise AuditError(f"{path}: no such file or folder; name a run, a Parquet file or a manifest")
    if path.is_dir():
        if (path / FOLDER).is_dir():
            return _from_run(path, split, clips)
        if (path / "dataset_info.json").is_file() or (path / "dataset_dict.json").is_file():
            return from_dataset_folder(path, clips)
        parquet = sorted(path.glob("*.parquet"))
        if parquet:
            return _from_parquet(parquet, str(path), clips)
        raise AuditError(f"{path}: {_what_is_in(path)}; name a run, or list the files in a manifest")
    if path.suffix == ".parquet":
        return _from_parquet([path], str(path), clips)
    if path.suffix in MANIFESTS:
        return from_manifest(path, clips)
    raise AuditError(
        f"{path}: not a run folder, Parquet file or manifest; list audio in a .jsonl or .csv with "
        "the columns audio and text"
    )


def _what_is_in(folder: Path) -> str:
    endings = Counter(path.suffix or "nameless" for path in folder.iterdir() if path.is_file())
    if not endings:
        return "no rollouts in it"
    ending, count = endings.most_common(1)[0]
    return f"no rollouts, Parquet files or dataset in it, but {count} {ending} files"


def _from_run(folder: Path, split: Split, clips: int | None) -> ClipSet:
    paths = stored_steps(folder, split)
    if not paths and split == "train":
        split = "sample"
        paths = stored_steps(folder, split)
    if not paths:
        there = [name for name in SPLITS if stored_steps(folder, name)]
        raise AuditError(
            f"{folder / FOLDER}: no rollouts of split {split}; there are: {', '.join(there) or 'none'}"
        )
    config = load_config(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else None
    return _from_steps(paths, str(folder), clips, config)


def _from_parquet(paths: Sequence[Path], source: str, clips: int | None) -> ClipSet:
    """Files that a run wrote, with its configuration where that is beside them; else any table with audio."""
    own = [_has_own_metadata(path) for path in paths]
    if all(own):
        beside = paths[0].resolve().parent.parent / CONFIG_FILE
        config = load_config(beside) if beside.is_file() else None
        return _from_steps(paths, source, clips, config)
    if any(own):
        odd = paths[own.index(False)]
        raise AuditError(f"{odd}: not a rollout file, as others beside it are; name one kind of files")
    return from_table([str(path) for path in paths], source, clips)


def _has_own_metadata(path: Path) -> bool:
    try:
        return _OWN_METADATA in (pq.read_schema(path).metadata or {})
    except (pa.ArrowInvalid, OSError) as error:
        reason = " ".join(str(error).split())
        raise AuditError(
            f"{path}: cut short or not Parquet ({reason}); delete it or fetch it again"
        ) from error


def _from_steps(paths: Sequence[Path], source: str, clips: int | None, config: RunConfig | None) -> ClipSet:
    if clips is not None and len(paths) > 1:
        per_step = max(1, pq.read_metadata(paths[0]).num_rows) if _has_own_metadata(paths[0]) else 1
        paths = [paths[place] for place in spread_evenly(len(paths), round(clips / per_step))]
    records = [read_step(path) for path in paths]
    starts = np.cumsum([0, *(len(record.rollouts) for record in records)])
    whole: list[Clip] = []
    ids: list[str] = []
    groups: list[np.ndarray] = []
    for record in records:
        offset = 0 if not groups else int(groups[-1].max()) + 1
        groups.append(record.group_ids - record.group_ids.min() + offset)
        for rollout, audio in zip(record.rollouts, record.audio, strict=True):
            heard = np.full(1, np.nan, np.float32) if audio is None else audio
            whole.append(clip_of(rollout, heard, record.sample_rate))
            ids.append(f"{record.split}-{record.step}-{rollout.prompt.id}-{rollout.sample_index}")
    judged = records[0].split != "train"
    return ClipSet(
        source=source,
        ids=ids,
        clips=whole,
        prompts=[rollout.prompt.id for record in records for rollout in record.rollouts],
        groups=np.concatenate(groups),
        steps=np.repeat([record.step for record in records], np.diff(starts)),
        batches=[
            start + np.argsort(record.submitted) for start, record in zip(starts, records, strict=False)
        ],
        stored=joined([_scores(record) for record in records], list(records[0].values)),
        rewards=None if config is None else asdict(config.rewards),
        monitors=dict(config.evaluation.monitors) if config is not None and judged else {},
        config_hash=records[0].config_hash,
    )


def _scores(record: StepRecord) -> Scores:
    return Scores(record.values, record.total, record.reasons, record.details, record.gated)
