"""``rl-rollout``: sample the training prompts, score and save them; nothing is trained."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rl.config import save_resolved
from rl.errors import RunFolderError
from rl.live import number
from rl.metrics import METRICS_FILE, reward_metrics
from rl.parts import build_parts, sample_and_score
from rl.prompts_file import load_prompts
from rl.run_folder import CONFIG_FILE
from rl.schema import RunConfig
from rl.seeds import derive_seed, step_prompts
from rollouts.store import step_path, write_step


def sample_only(config: RunConfig) -> Path:
    """Sample what the first training step would train on and store it as split ``sample``.

    Writes ``<output_dir>/<name>/rollouts/sample_000000.parquet``, returns its path, and prints each reward's
    mean. The seeds differ from those of training. Raises `RunFolderError` when the folder holds a training
    run, whose configuration it would replace.
    """
    folder = Path(config.output_dir, config.name)
    if (folder / METRICS_FILE).exists():
        raise RunFolderError(f"{folder}: holds a training run; choose another name=")
    parts = build_parts(config)
    prompts = load_prompts(config.prompts.train)
    per_step = min(config.trainer.prompts_per_step, len(prompts))
    chosen = [prompts[index] for index in step_prompts(config.seed, 1, len(prompts), per_step)]
    record = sample_and_score(
        parts,
        parts.judges,
        chosen,
        config,
        samples=config.rollouts.group_size,
        temperature=config.rollouts.temperature,
        seed=derive_seed(config.seed, "sample"),
        step=0,
        split="sample",
        progress="scoring",
    )
    parts.engine.close()
    parts.judges.close()
    path = step_path(folder, 0, "sample")
    write_step(path, record)
    save_resolved(config, folder / CONFIG_FILE)
    console = Console()
    for name, value in reward_metrics(record.values, record.total, record.gated, record.group_ids).items():
        console.print(f"{name} {number(value)}", markup=False)
    console.print(f"{len(record.rollouts)} clips in {path}", markup=False, soft_wrap=True)
    return path
