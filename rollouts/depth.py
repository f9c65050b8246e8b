"""For policies without feedback: the fast AR runs afterwards, over the frames of many samples at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

FRAMES_AT_ONCE = 1024
"""Frames in one pass of the fast AR: enough to fill a device, few enough to bound its cache."""

Sample = TypeVar("Sample")


def in_batches(samples: Iterable[Sample], frames: Callable[[Sample], int]) -> Iterator[list[Sample]]:
    """Consecutive ``samples`` in lists with `FRAMES_AT_ONCE` frames or more, but for the last list."""
    batch, count = list[Sample](), 0
    for sample in samples:
        batch.append(sample)
        count += frames(sample)
        if count >= FRAMES_AT_ONCE:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch
