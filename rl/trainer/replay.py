"""``rl-train --replay``: the learner's steps once more on saved rollouts, with the same or other rewards."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from rewards.audit.data_in import read_clips
from rewards.audit.rescore import rescore
from rewards.graph import RewardGraph, build_graph
from rl.config import load_config, save_resolved
from rl.errors import ConfigError, RunFolderError
from rl.live import LiveView
from rl.metrics import METRICS_FILE, MetricsWriter, read_metrics
from rl.parts import load_for_run
from rl.report.html import write_report
from rl.run_folder import CONFIG_FILE
from rl.schema import RunConfig
from rl.seeds import derive_seed
from rl.trainer.adapter import add_adapter
from rl.trainer.grpo import DualARTrainer
from rl.trainer.learners import launched
from rollouts.store import StepRecord, read_step, stored_steps


def replay(config: RunConfig, run: Path) -> Path:
    """Train on the rollouts that ``run`` saved, one pass over each of its first ``trainer.steps`` steps.

    The ratios are of the learner over the log-probs that the sampler stored. With ``config`` as it was, that
    repeats the run's losses and weights; with other ``rewards`` the clips are scored again, only by nodes
    that the run hadn't. Writes config, metrics, checkpoints and report to ``<output_dir>/<name>`` and returns
    that folder. Raises an `AuralignError` where files are missing or don't fit the configuration.
    """
    if launched():
        raise ConfigError("--replay: trains in one process; start it without a launcher")
    folder = Path(config.output_dir, config.name)
    if (folder / METRICS_FILE).exists():
        raise RunFolderError(f"{folder}: holds a run already; choose another name=")
    paths = stored_steps(run, "train")
    if len(paths) < config.trainer.steps:
        raise RunFolderError(
            f"{run}: holds {len(paths)} training steps, fewer than trainer.steps={config.trainer.steps}; "
            "lower it"
        )
    began = load_config(run / CONFIG_FILE)
    changed = asdict(began.rewards) != asdict(config.rewards)
    graph = build_graph(asdict(config.rewards)) if changed else None
    run_graph = build_graph(asdict(began.rewards)) if changed else None
    policy, tokenizer = load_for_run(config.model)
    model = add_adapter(policy, config.lora, derive_seed(config.seed, "adapter"))
    folder.mkdir(parents=True, exist_ok=True)
    save_resolved(config, folder / CONFIG_FILE)

    def collect(step: int) -> StepRecord:
        record = read_step(paths[step - 1])
        _check(record, config, paths[step - 1])
        if graph is not None and run_graph is not None:
            return _rescored(record, paths[step - 1], graph, run_graph)
        return record

    with MetricsWriter(folder / METRICS_FILE) as writer, LiveView(config.trainer.steps) as view:

        def report(step: int, metrics: dict[str, float]) -> None:
            writer.write(step, metrics)
            view.step(step, metrics)

        trainer = DualARTrainer(
            model, tokenizer, config, folder / "checkpoints", collect, lambda record: None, report
        )
        trainer.train()
    if graph is not None and run_graph is not None:
        graph.close()
        run_graph.close()
    console = Console()
    gap = largest_gap(folder, run)
    if not math.isnan(gap):
        console.print(f"largest difference of a step's loss from the run's: {gap:.3g}", markup=False)
    console.print(f"report: {write_report(folder)}", markup=False, soft_wrap=True)
    return folder


def largest_gap(folder: Path, run: Path) -> float:
    """Largest difference of a step's loss between the metrics of two runs; NaN where they share no step."""
    losses = [
        {
            row["step"]: row["learner/loss"]
            for row in read_metrics(side / METRICS_FILE)
            if "learner/loss" in row
        }
        for side in (folder, run)
        if (side / METRICS_FILE).exists()
    ]
    if len(losses) < 2:
        return math.nan
    gaps = [abs(losses[0][step] - losses[1][step]) for step in losses[0].keys() & losses[1].keys()]
    return max(gaps, default=math.nan)


def _check(record: StepRecord, config: RunConfig, path: Path) -> None:
    expected = config.trainer.prompts_per_step * config.rollouts.group_size
    if len(record.rollouts) != expected:
        raise ConfigError(
            f"{path}: holds {len(record.rollouts)} rollouts, but trainer.prompts_per_step x "
            f"rollouts.group_size is {expected}; leave both as in the run"
        )


def _rescored(record: StepRecord, path: Path, graph: RewardGraph, run_graph: RewardGraph) -> StepRecord:
    scores = rescore(read_clips(path), graph, run_graph=run_graph)
    return replace(
        record,
        values=scores.values,
        total=scores.total,
        gated=scores.gated,
        reasons=scores.reasons,
        details=scores.details,
    )
