"""From two evaluations of the same prompts and seeds to the before/after table and the listening pairs."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from rl.run_folder import Better, ListeningClip, ListeningPair, MetricRow, Role
from rl.stats import compare
from rollouts.store import StepRecord


def metric_rows(
    before: StepRecord,
    after: StepRecord,
    *,
    components: Collection[str],
    outside: Collection[str],
    lower_is_better: Collection[str],
) -> list[MetricRow]:
    """The total, its ``components``, the outputs of nodes ``outside`` of it, then what is left.

    ``components`` and ``lower_is_better`` hold names of outputs (``asr.confidence``), ``outside`` of nodes
    (``asr``). The completions' length is appended as ``frames``, of which neither more nor fewer is better.
    Raises ValueError when the records don't hold the same samples.
    """
    order = _pairing(before, after)
    prompts = [rollout.prompt.id for rollout in before.rollouts]

    def role(name: str) -> Role:
        if name in components:
            return "reward"
        return "outside" if name.partition(".")[0] in outside else "related"

    def better(name: str) -> Better:
        return "lower" if name in lower_is_better else "higher"

    rows = [
        MetricRow(name, role(name), better(name), compare(column, after.values[name][order], prompts))
        for name, column in before.values.items()
        if name in after.values
    ]
    return [
        MetricRow("total", "total", "higher", compare(before.total, after.total[order], prompts)),
        *sorted(rows, key=lambda row: ("reward", "outside", "related").index(row.role)),
        MetricRow("frames", "related", "neither", compare(_frames(before), _frames(after)[order], prompts)),
    ]


def listening_pairs(before: StepRecord, after: StepRecord, prompts: int) -> list[ListeningPair]:
    """The first sample of the first ``prompts`` prompts, before and after: chosen by position, not by ear."""
    order = _pairing(before, after)
    seen: dict[str, int] = {}
    for index, rollout in enumerate(before.rollouts):
        seen.setdefault(rollout.prompt.id, index)
    pairs = []
    for index in list(seen.values())[:prompts]:
        rollout = before.rollouts[index]
        pairs.append(
            ListeningPair(
                rollout.prompt.id,
                rollout.prompt.text,
                rollout.prompt.spoken,
                rollout.sample_index,
                rollout.seed,
                _clip(before, index),
                _clip(after, int(order[index])),
            )
        )
    return pairs


def _pairing(before: StepRecord, after: StepRecord) -> np.ndarray:
    """``order`` such that ``after[order[i]]`` is the same prompt, sample and seed as ``before[i]``."""
    left = [(r.prompt.id, r.sample_index, r.seed) for r in before.rollouts]
    right = {(r.prompt.id, r.sample_index, r.seed): i for i, r in enumerate(after.rollouts)}
    if set(left) != set(right) or len(left) != len(after.rollouts):
        raise ValueError("before and after don't hold the same prompts, samples and seeds")
    return np.array([right[key] for key in left])


def _frames(record: StepRecord) -> np.ndarray:
    return np.array([float(len(rollout.codes)) for rollout in record.rollouts])


def _clip(record: StepRecord, index: int) -> ListeningClip:
    values = {"total": float(record.total[index])}
    values |= {name: float(column[index]) for name, column in record.values.items()}
    heard = {
        node: details["text"]
        for node, details in record.details[index].items()
        if isinstance(details.get("text"), str)
    }
    return ListeningClip(record.audio[index], values, heard)
