"""Counter-based seeds: a step's randomness follows from the run's seed and the step, not from history."""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["adapter", "order", "rollouts", "learner", "evaluation", "sample"]
_STREAMS: tuple[Stream, ...] = ("adapter", "order", "rollouts", "learner", "evaluation", "sample")


def derive_seed(seed: int, stream: Stream, counter: int = 0) -> int:
    """A seed in ``[0, 2**32)`` of its own for each (``seed``, ``stream``, ``counter``)."""
    sequence = np.random.SeedSequence([seed, _STREAMS.index(stream), counter])
    return int(sequence.generate_state(1)[0])


def step_prompts(seed: int, step: int, prompts: int, per_step: int) -> list[int]:
    """Which of ``prompts`` prompts step ``step`` (from 1) trains on: ``per_step`` different ones.

    Every epoch is a new shuffle of all prompts, without those that don't fill a last step.
    """
    epoch, place = divmod(step - 1, prompts // per_step)
    order = np.random.default_rng(derive_seed(seed, "order", epoch)).permutation(prompts)
    return [int(index) for index in order[place * per_step : (place + 1) * per_step]]
