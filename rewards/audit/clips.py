"""The clips that an audit is about, and what a run has said of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rewards.types import Clip, Scores


@dataclass
class ClipSet:
    """N clips, in any order.

    ``groups``: int64 ``[N]``, equal for the samples of one prompt in one step. ``steps``: int64 ``[N]``, the
    training step, 0 where there is none. ``batches``: places of the clips, each array what one stream of the
    reward graph is given, in the order in which the run submitted them. ``prompts``: ids, equal for one
    prompt in any step.

    ``stored``: the run's own scores, in the order of ``clips``; None where there aren't any. ``rewards`` and
    ``monitors``: the configuration that gave them. ``config_hash``: of that run, empty without one.
    """

    source: str
    ids: list[str]
    clips: list[Clip]
    prompts: list[str]
    groups: np.ndarray
    steps: np.ndarray
    batches: list[np.ndarray]
    stored: Scores | None = None
    rewards: dict[str, Any] | None = None
    monitors: dict[str, Any] = field(default_factory=dict)
    config_hash: str = ""

    def __len__(self) -> int:
        return len(self.clips)

    def part(self, places: Sequence[int] | np.ndarray) -> ClipSet:
        """The clips at ``places`` alone, as one batch; the batches of the run are lost."""
        chosen = [int(place) for place in places]
        return replace(
            self,
            ids=[self.ids[i] for i in chosen],
            clips=[self.clips[i] for i in chosen],
            prompts=[self.prompts[i] for i in chosen],
            groups=self.groups[chosen],
            steps=self.steps[chosen],
            batches=[np.arange(len(chosen))],
            stored=None if self.stored is None else part_of(self.stored, chosen),
        )


def part_of(scores: Scores, places: Sequence[int]) -> Scores:
    """The rows ``places`` of ``scores``."""
    return Scores(
        values={name: column[list(places)] for name, column in scores.values.items()},
        total=scores.total[list(places)],
        reasons=[scores.reasons[i] for i in places],
        details=[scores.details[i] for i in places],
        gated=scores.gated[list(places)],
    )


def joined(parts: Sequence[Scores], outputs: Sequence[str]) -> Scores:
    """``parts`` one behind the other, with the values of ``outputs``; NaN where a part lacks one."""
    return Scores(
        values={
            name: np.concatenate([part.values.get(name, np.full(len(part.total), np.nan)) for part in parts])
            for name in outputs
        },
        total=np.concatenate([part.total for part in parts]),
        reasons=[row for part in parts for row in part.reasons],
        details=[row for part in parts for row in part.details],
        gated=np.concatenate([part.gated for part in parts]),
    )


def spread_evenly(count: int, wanted: int) -> list[int]:
    """``wanted`` of ``count`` places, evenly spaced, the first and the last among them."""
    if wanted >= count:
        return list(range(count))
    return sorted({int(place) for place in np.linspace(0, count - 1, max(wanted, 1)).round()})
