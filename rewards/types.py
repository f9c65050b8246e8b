"""What a reward node sees of a clip, and what the graph returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Clip:
    """One clip to score: mono float32 ``audio`` ``[n]`` at ``sample_rate`` Hz, and what it should be.

    ``text`` is the prompt with tags, ``spoken`` the words an ASR should hear. ``reference`` is audio of
    the voice asked for (mono float32 at ``reference_rate``), None if the prompt names none.
    ``voices[N]`` is audio and rate of the voice that ``<|speaker:N|>`` asks for, where the prompt says so.
    ``meta`` is the prompt's meta plus ``frames`` and ``finish_reason`` when the clip is a rollout.
    ``rival`` is audio and rate of another clip of the same prompt, for the nodes that compare two.
    """

    audio: np.ndarray
    sample_rate: int
    text: str
    spoken: str
    reference: np.ndarray | None = None
    reference_rate: int | None = None
    meta: dict[str, Any] = field(default_factory=dict)
    voices: Mapping[str, tuple[np.ndarray, int]] = field(default_factory=dict)
    rival: tuple[np.ndarray, int] | None = None


@dataclass(frozen=True)
class ClipScore:
    """The graph's answer for one clip, NaN where missing; `Scores` says more of each field."""

    values: dict[str, float]
    total: float
    reasons: dict[str, str]
    details: dict[str, dict[str, Any]]
    gated: bool


@dataclass
class Scores:
    """The graph's answer for a batch of B clips.

    ``values[node_output]``: float64 ``[B]``, NaN where missing. ``total``: float64 ``[B]``, NaN where it
    can't be computed. ``reasons[b]``: ``{output: why it is missing}``. ``details[b]``: ``{node: {...}}``,
    JSON-able (transcript, caption, raw answer, ...). ``gated``: bool ``[B]``, True where a gate closed on
    the clip: its total is the gate's floor, a legitimate reward, and the nodes behind the gate have no value.
    """

    values: dict[str, np.ndarray]
    total: np.ndarray
    reasons: list[dict[str, str]]
    details: list[dict[str, dict[str, Any]]]
    gated: np.ndarray

    @classmethod
    def of(cls, clips: Sequence[ClipScore], outputs: Sequence[str]) -> Scores:
        """The batch of ``clips``, each with a value for all ``outputs``."""
        return cls(
            values={name: np.array([clip.values[name] for clip in clips], np.float64) for name in outputs},
            total=np.array([clip.total for clip in clips], np.float64),
            reasons=[clip.reasons for clip in clips],
            details=[clip.details for clip in clips],
            gated=np.array([clip.gated for clip in clips], bool),
        )
