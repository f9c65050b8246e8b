"""How a step's samples are spread over forward and backward passes."""

from __future__ import annotations

from collections.abc import Sequence

from rl.policy.packing import prompt_key, rest_length
from rl.policy.turns import TurnRows


def micro_batches(samples: Sequence[Sequence[TurnRows]], tokens: int) -> list[list[int]]:
    """Places of ``samples`` in order, as many together as have at most ``tokens`` positions of the slow AR.

    A prompt counts once for those beside each other that share it, as `rl.policy.packing.pack` lays it once.
    A sample with more than ``tokens`` is alone.
    """
    batches: list[list[int]] = []
    prompts: set[bytes] = set()
    used = 0
    for place, sample in enumerate(samples):
        key, prompt, rest = prompt_key(sample), sample[0].read.shape[1], rest_length(sample)
        needed = rest if key in prompts else prompt + rest
        if not batches or used + needed > tokens:
            batches.append([])
            prompts, used, needed = set(), 0, prompt + rest
        batches[-1].append(place)
        prompts.add(key)
        used += needed
    return batches
