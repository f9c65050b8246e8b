"""The learning rate over a run."""

from __future__ import annotations

import math

from rl.schema import TrainerConfig


def learning_rate_factor(done: int, trainer: TrainerConfig) -> float:
    """Share of the peak learning rate for the step after ``done`` finished ones.

    Linear warm-up over ``warmup_steps`` (the first step already moves), then from 1 down to
    ``min_lr_ratio`` at the last step, along the chosen curve.
    """
    if done < trainer.warmup_steps:
        return (done + 1) / (trainer.warmup_steps + 1)
    if trainer.lr_schedule == "constant":
        return 1.0
    span = max(1, trainer.steps - 1 - trainer.warmup_steps)
    progress = min(1.0, (done - trainer.warmup_steps) / span)
    left = 1 - progress if trainer.lr_schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return trainer.min_lr_ratio + (1 - trainer.min_lr_ratio) * left
