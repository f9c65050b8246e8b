"""Held-out prompts before and after training: sampled with the same seeds, judged, compared."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from rewards.direction import lower_is_better
from rewards.graph import RewardGraph
from rl.before_after import listening_pairs, metric_rows
from rl.parts import Parts, sample_and_score
from rl.prompts_file import load_prompts
from rl.run_folder import Evaluation, write_evaluation, write_samples
from rl.schema import RunConfig
from rl.seeds import derive_seed
from rollouts.store import StepRecord, read_step, step_path, write_step


def evaluate(
    parts: Parts, config: RunConfig, folder: Path, split: Literal["eval_before", "eval_after"], step: int
) -> StepRecord:
    """Sample, judge and store the held-out prompts with the engine's present weights."""
    evaluation = config.evaluation
    record = sample_and_score(
        parts,
        parts.judges,
        load_prompts(config.prompts.heldout)[: evaluation.prompts],
        config,
        samples=evaluation.samples,
        temperature=evaluation.temperature or config.rollouts.temperature,
        seed=derive_seed(config.seed, "evaluation"),
        step=step,
        split=split,
        progress=f"judging held-out clips {'before' if split == 'eval_before' else 'after'} training",
    )
    write_step(step_path(folder, step, split), record)
    return record


def compare_stored(config: RunConfig, folder: Path, judges: RewardGraph, step: int) -> Evaluation:
    """The table of the stored evaluations before training and after ``step``; written with the clips."""
    before = read_step(step_path(folder, 0, "eval_before"))
    after = read_step(step_path(folder, step, "eval_after"))
    rows = metric_rows(
        before,
        after,
        components=judges.components(),
        outside=config.evaluation.monitors,
        lower_is_better=lower_is_better(judges),
    )
    evaluation = Evaluation(
        step=step,
        prompts=len({rollout.prompt.id for rollout in before.rollouts}),
        samples=config.evaluation.samples,
        temperature=config.evaluation.temperature or config.rollouts.temperature,
        rows=rows,
    )
    write_samples(folder, listening_pairs(before, after, config.evaluation.listen), before.sample_rate)
    write_evaluation(folder, evaluation)
    return evaluation
