"""What an audit leaves: ``audit.json`` for machines, Parquet for analysts, ``report.html`` for people.

Every file is written under another name and renamed: a reader sees a whole file or none.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rewards.audit.groups import centred
from rewards.audit.nuisance import transcript_of
from rewards.audit.probes import Probe
from rewards.audit.run import Audit
from rl.errors import AuditError

FORMAT = 1
JSON_FILE, CLIPS_FILE, ATTACKS_FILE, REPORT_FILE = (
    "audit.json",
    "clips.parquet",
    "attacks.parquet",
    "report.html",
)


def write_audit(audit: Audit, folder: Path) -> list[Path]:
    """Write all files of ``audit`` to ``folder``; returns their paths. Raises `AuditError`."""
    from rewards.audit.report import build_report

    text = json.dumps(_nulls(as_json(audit)), ensure_ascii=False, allow_nan=False, indent=1) + "\n"
    page = build_report(audit)
    writers: dict[str, Callable[[Path], Any]] = {
        JSON_FILE: lambda path: path.write_text(text, encoding="utf-8"),
        CLIPS_FILE: lambda path: pq.write_table(clips_table(audit), path, compression="zstd"),
        REPORT_FILE: lambda path: path.write_text(page, encoding="utf-8"),
    }
    if any(not probe.skipped for probe in audit.probes):
        writers[ATTACKS_FILE] = lambda path: pq.write_table(attacks_table(audit), path, compression="zstd")
    written = []
    for name, write in writers.items():
        path = folder / name
        partial = path.with_name(path.name + ".tmp")
        try:
            write(partial)
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise AuditError(f"{path}: can't be written ({error.strerror}); name another --out") from error
        written.append(path)
    return written


def as_json(audit: Audit) -> dict[str, Any]:
    """All figures; NaNs are still NaN in it."""
    data = audit.data
    return {
        "format": FORMAT,
        "source": data.source,
        "split": audit.request.split,
        "config_hash": data.config_hash,
        "clips": len(data),
        "groups": len(set(data.groups.tolist())),
        "steps": sorted(set(data.steps.tolist())),
        "seconds": audit.seconds,
        "settings": asdict(audit.settings),
        "rewards": audit.rewards,
        "checks": [{"name": check.name, **asdict(check)} for check in audit.checks],
        "failed": [check.name for check in audit.checks if not check.passed],
        "reproduction": [asdict(one) for one in audit.differences],
        "outputs": [asdict(one) for one in audit.diagnosis.outputs],
        "correlations": audit.diagnosis.correlations,
        "nuisance": audit.diagnosis.nuisance,
        "reasons": audit.diagnosis.reasons,
        "drift": [asdict(one) for one in audit.diagnosis.drift],
        "slices": [asdict(one) for one in audit.diagnosis.slices],
        "probes": [asdict(one) for one in audit.probes],
        "comparison": None if audit.comparison is None else asdict(audit.comparison),
        "runs": {name: asdict(one) for name, one in audit.runs.items()},
        "judges": [asdict(one) for one in audit.noise],
        "judge_pairs": [asdict(one) for one in audit.pairs],
        "people": None if audit.people is None else asdict(audit.people),
    }


def clips_table(audit: Audit) -> pa.Table:
    """One row for each clip, without its audio: texts, the reward's values, the stored total, measures."""
    data, scores = audit.data, audit.scores
    advantage = centred(scores.total, data.groups)
    columns: dict[str, Any] = {
        "clip": data.ids,
        "prompt": data.prompts,
        "group": data.groups,
        "step": data.steps,
        "text": [clip.text for clip in data.clips],
        "spoken": [clip.spoken for clip in data.clips],
        "heard": [transcript_of(details) for details in scores.details],
        "total": _nullable(scores.total),
        "advantage": _nullable(advantage),
        "gated": scores.gated,
        **{f"reward.{name}": _nullable(column) for name, column in scores.values.items()},
        **{f"measure.{name}": _nullable(column) for name, column in audit.measures.items()},
        "missing": [json.dumps(row, ensure_ascii=False) for row in scores.reasons],
    }
    if data.stored is not None:
        columns["stored_total"] = _nullable(data.stored.total)
    return pa.table(columns)


def attacks_table(audit: Audit) -> pa.Table:
    """One row for each attacked clip: the attack, and the total and values before and under it."""
    tables = [_attack_table(audit, probe) for probe in audit.probes if not probe.skipped]
    return pa.concat_tables(tables)


def _attack_table(audit: Audit, probe: Probe) -> pa.Table:
    under, scores = audit.attacked[probe.name]
    place = {name: i for i, name in enumerate(audit.data.ids)}
    places = [place[name] for name in under.ids]
    clean = audit.scores
    columns: dict[str, Any] = {
        "probe": [probe.name] * len(under),
        "clip": under.ids,
        "total": _nullable(clean.total[places]),
        "attacked_total": _nullable(scores.total),
        "gated": scores.gated,
    }
    for name, column in clean.values.items():
        columns[f"reward.{name}"] = _nullable(column[places])
        columns[f"attacked.{name}"] = _nullable(scores.values[name])
    return pa.table(columns)


def _nullable(column: Any) -> pa.Array:
    return pa.array(column, pa.float64(), from_pandas=True)


def _nulls(content: Any) -> Any:
    """``content`` with every NaN and infinity, which JSON doesn't know, as None."""
    if isinstance(content, dict):
        return {name: _nulls(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [_nulls(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
