#!/usr/bin/env python
"""How much of a run's gain would sharper sampling of the base give? The base at the trained policy's entropy.

Finds the temperature at which the base's rollouts of the held-out prompts are as surprising to itself as the
trained policy's are to itself (nats per frame, both ARs), judges the base there with the seeds and judges of
the run's evaluation, and prints both gains. The last line is one JSON object.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console

from rewards.direction import lower_is_better
from rl.before_after import metric_rows
from rl.cli.common import run_main
from rl.config import load_config
from rl.errors import RunFolderError
from rl.live import before_after_table
from rl.parts import build_parts, sample_and_score
from rl.prompts_file import load_prompts
from rl.run_folder import CONFIG_FILE
from rl.seeds import derive_seed
from rollouts.store import read_step, step_path
from rollouts.types import Rollout, SamplingParams

ROUNDS = 6
"""Of bisection: the temperature is found to about 1 %."""
TOLERANCE = 0.02
"""Share by which the control's entropy may miss the trained policy's."""


def nats_per_frame(rollouts: Sequence[Rollout]) -> float:
    """Mean negative log-prob of a frame's codes under what sampled them: an estimate of the entropy."""
    frames = sum(len(rollout.codes) for rollout in rollouts)
    return -float(sum(rollout.logprobs.sum() for rollout in rollouts)) / frames


def main() -> None:
    """Match the entropy, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, help="folder of a finished run, with its evaluations")
    folder: Path = parser.parse_args().run
    config = load_config(folder / CONFIG_FILE)
    evaluation = config.evaluation
    before = read_step(step_path(folder, 0, "eval_before"))
    after = read_step(step_path(folder, config.trainer.steps, "eval_after"))
    parts = build_parts(config)
    prompts = load_prompts(config.prompts.heldout)[: evaluation.prompts]
    seed = derive_seed(config.seed, "evaluation")
    wanted = nats_per_frame(after.rollouts)
    usual = evaluation.temperature or config.rollouts.temperature
    low, high = 0.5 * usual, 1.2 * usual
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        sampling = SamplingParams(middle, config.rollouts.max_frames)
        found = nats_per_frame(parts.engine.generate(prompts, evaluation.samples, sampling, seed))
        low, high = (middle, high) if found < wanted else (low, middle)
    if abs(found - wanted) > TOLERANCE * wanted:
        raise RunFolderError(
            f"{folder}: there is no control: at temperatures from {0.5 * usual:.2f} to {1.2 * usual:.2f} the "
            f"base has no {wanted:.2f} nats per frame as the trained policy has (nearest: {found:.2f})"
        )
    control = sample_and_score(
        parts,
        parts.judges,
        prompts,
        config,
        samples=evaluation.samples,
        temperature=(low + high) / 2,
        seed=seed,
        step=0,
        split="sample",
        progress="judging the control",
    )
    rows = {
        name: metric_rows(
            before,
            record,
            components=parts.judges.components(),
            outside=evaluation.monitors,
            lower_is_better=lower_is_better(parts.judges),
        )
        for name, record in (("training", after), ("sharpening", control))
    }
    parts.judges.close()
    console = Console()
    for name, table in rows.items():
        console.print(f"{name}:", before_after_table(table), sep="\n")
    result = {
        "base_nats_per_frame": nats_per_frame(before.rollouts),
        "trained_nats_per_frame": wanted,
        "control_nats_per_frame": nats_per_frame(control.rollouts),
        "control_temperature": (low + high) / 2,
        "gain": {
            name: {row.name: float(np.round(row.comparison.delta, 4)) for row in table}
            for name, table in rows.items()
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(run_main(main))
