"""The JSON files of a run folder: the evaluation's table and the clips to listen to.

docs/run_folder.md describes both formats. Writers are atomic; readers raise RunFolderError, one line that
names the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rl.errors import RunFolderError
from rl.stats import Comparison
from rollouts.store import encode_flac

CONFIG_FILE = "config.yaml"
EVALUATION_FILE = "evaluation.json"
REPORT_FILE = "report.html"
PLOTS_FOLDER = "plots"
SAMPLES_FOLDER = "samples"
SAMPLES_INDEX = "index.json"
FORMAT = 1

Role = Literal["total", "reward", "related", "outside"]
ROLES: dict[Role, str] = {  # as people read them
    "total": "the reward",
    "reward": "in the reward",
    "outside": "evaluation only",
    "related": "not counted",
}
Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class MetricRow:
    """One metric of the evaluation.

    ``role``: the ``total``; a ``reward`` that it names; a number ``related`` to it, such as another output of
    the same judge; or of a judge ``outside`` of training, which only the evaluation asks.
    """

    name: str
    role: Role
    better: Better
    comparison: Comparison

    @property
    def verdict(self) -> Literal["better", "worse", "changed", "no clear change"]:
        """What the interval allows one to say."""
        if not self.comparison.significant:
            return "no clear change"
        if self.better == "neither":
            return "changed"
        return "better" if (self.comparison.delta > 0) == (self.better == "higher") else "worse"


@dataclass(frozen=True)
class Evaluation:
    """Held-out prompts before training and after ``step`` steps, ``samples`` each at ``temperature``."""

    step: int
    prompts: int
    samples: int
    temperature: float
    rows: list[MetricRow]


@dataclass(frozen=True)
class ListeningClip:
    """A clip to listen to: ``audio`` float32 ``[n]`` on the 16-bit grid (None where not finite), its values
    (the total among them as ``total``; NaN is missing) and what each recogniser heard."""

    audio: np.ndarray | None
    values: Mapping[str, float]
    transcripts: Mapping[str, str]


@dataclass(frozen=True)
class ListeningPair:
    """The same prompt and seed, before and after training."""

    prompt_id: str
    text: str
    spoken: str
    sample_index: int
    seed: int
    before: ListeningClip
    after: ListeningClip


@dataclass(frozen=True)
class SavedClip:
    """A `ListeningClip` as read back: ``flac`` is a whole file, None where there is nothing to hear."""

    flac: bytes | None
    seconds: float
    values: dict[str, float]
    transcripts: dict[str, str]


@dataclass(frozen=True)
class SavedPair:
    prompt_id: str
    text: str
    spoken: str
    sample_index: int
    seed: int
    before: SavedClip
    after: SavedClip


def write_evaluation(run_dir: str | Path, evaluation: Evaluation) -> None:
    """Write ``evaluation.json``."""
    _write_json(Path(run_dir) / EVALUATION_FILE, {"format": FORMAT, **asdict(evaluation)})


def read_evaluation(run_dir: str | Path) -> Evaluation | None:
    """Read ``evaluation.json``; None for a run without an evaluation (yet)."""
    path = Path(run_dir) / EVALUATION_FILE
    if not path.exists():
        return None
    content = _read_json(path)
    try:
        rows = [
            MetricRow(row["name"], row["role"], row["better"], Comparison(**_numbers(row["comparison"])))
            for row in content["rows"]
        ]
        return Evaluation(
            content["step"], content["prompts"], content["samples"], content["temperature"], rows
        )
    except (KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def write_samples(run_dir: str | Path, pairs: Sequence[ListeningPair], sample_rate: int) -> None:
    """Write ``samples/``: a FLAC file for each clip, and ``index.json`` last."""
    folder = Path(run_dir) / SAMPLES_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, pair in enumerate(pairs):
        entries.append(
            {
                "prompt_id": pair.prompt_id,
                "text": pair.text,
                "spoken": pair.spoken,
                "sample_index": pair.sample_index,
                "seed": pair.seed,
                "before": _save_clip(folder, f"{number:03d}_before.flac", pair.before, sample_rate),
                "after": _save_clip(folder, f"{number:03d}_after.flac", pair.after, sample_rate),
            }
        )
    _write_json(folder / SAMPLES_INDEX, {"format": FORMAT, "sample_rate": sample_rate, "pairs": entries})


def read_samples(run_dir: str | Path) -> list[SavedPair]:
    """Read ``samples/``; empty for a run without them (yet)."""
    folder = Path(run_dir) / SAMPLES_FOLDER
    path = folder / SAMPLES_INDEX
    if not path.exists():
        return []
    content = _read_json(path)
    try:
        rate = content["sample_rate"]
        return [
            SavedPair(
                pair["prompt_id"],
                pair["text"],
                pair["spoken"],
                pair["sample_index"],
                pair["seed"],
                _load_clip(folder, pair["before"], rate),
                _load_clip(folder, pair["after"], rate),
            )
            for pair in content["pairs"]
        ]
    except (KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def _save_clip(folder: Path, name: str, clip: ListeningClip, sample_rate: int) -> dict[str, Any]:
    audible = clip.audio is not None and len(clip.audio) > 0
    if clip.audio is not None and audible:
        (folder / name).write_bytes(encode_flac(clip.audio, sample_rate))
    return {
        "file": name if audible else None,
        "samples": 0 if clip.audio is None else len(clip.audio),
        "values": dict(clip.values),
        "transcripts": dict(clip.transcripts),
    }


def _load_clip(folder: Path, entry: dict[str, Any], sample_rate: int) -> SavedClip:
    flac = None
    if entry["file"] is not None:
        path = folder / Path(entry["file"]).name
        try:
            flac = path.read_bytes()
        except FileNotFoundError:
            raise RunFolderError(f"{path}: the index lists this clip, but the file is missing") from None
    return SavedClip(flac, entry["samples"] / sample_rate, _numbers(entry["values"]), entry["transcripts"])


def _write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".tmp")
    text = json.dumps(_nulls(content), ensure_ascii=False, allow_nan=False, indent=1)
    partial.write_text(text + "\n", encoding="utf-8")
    partial.replace(path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _damaged(path, error) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise RunFolderError(f"{path}: not format {FORMAT}; use the Auralign version that wrote it")
    return content


def _damaged(path: Path, error: Exception) -> RunFolderError:
    return RunFolderError(f"{path}: damaged ({type(error).__name__}: {error}); delete it and evaluate again")


def _nulls(content: Any) -> Any:
    """``content`` with every NaN, which JSON doesn't know, as None."""
    if isinstance(content, dict):
        return {name: _nulls(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_nulls(value) for value in content]
    return None if isinstance(content, float) and math.isnan(content) else content


def _numbers(content: dict[str, Any]) -> dict[str, Any]:
    """The reverse of `_nulls` for one mapping of numbers."""
    return {name: math.nan if value is None else value for name, value in content.items()}
