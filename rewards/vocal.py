"""Vocal tags such as ``[slow]`` as changes that can be measured: of pitch, rate, level or voicing."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from rewards.acoustics import Measures, measure
from rewards.audio import at_16k, fingerprint
from rewards.node import Node, NodeError, option
from rewards.tags import parse_target
from rewards.types import Clip

Attribute = Literal["pitch", "rate", "level", "voicing"]

TAGS: dict[str, tuple[Attribute, int]] = {
    "high": ("pitch", 1),
    "high pitch": ("pitch", 1),
    "low": ("pitch", -1),
    "low pitch": ("pitch", -1),
    "fast": ("rate", 1),
    "slow": ("rate", -1),
    "loud": ("level", 1),
    "shouting": ("level", 1),
    "soft": ("level", -1),
    "whisper": ("voicing", -1),
    "whispering": ("voicing", -1),
}
"""The tags that can be measured: what changes, and whether it goes up or down."""


@dataclass(frozen=True)
class Change:
    """From the usual voice: ``pitch`` in semitones (None: no pitch to hear), ``rate`` and ``voicing`` as
    factors, ``level`` in dB. Where noise masks them, ``level`` and ``voicing`` are None.
    """

    pitch: float | None
    rate: float
    level: float | None
    voicing: float | None


def change(part: Measures, usual: Measures, rate: float) -> Change:
    """What changes from ``usual`` to ``part``, with the factor ``rate``, which needs the words as well.

    Raises `NodeError` where ``usual`` has no pitch or is in noise (see `can_compare`).
    """
    if usual.pitch is None or usual.level is None or not usual.voiced:
        raise NodeError("the voice to compare with has no pitch, or noise masks it")
    return Change(
        pitch=None if part.pitch is None else 12 * math.log2(part.pitch / usual.pitch),
        rate=rate,
        level=None if part.level is None else part.level - usual.level,
        voicing=None if part.voiced is None else part.voiced / usual.voiced,
    )


def can_compare(usual: Measures) -> bool:
    """Whether changes from ``usual`` can be told: it has a pitch and isn't masked by noise."""
    return usual.pitch is not None and usual.level is not None and bool(usual.voiced)


@dataclass
class VocalNode(Node):
    """What nodes share that judge vocal tags: how large a change counts as the tag performed."""

    pitch_step: float = option(2.0, "semitones from which [high] and [low] count", above=0)
    rate_step: float = option(1.17, "factor from which [fast] and [slow] count", above=1)
    level_step: float = option(3.0, "dB from which [loud] and [soft] count", above=0)
    voicing_step: float = option(
        0.8, "share of the usual voicing up to which [whisper] counts", above=0, at_most=0.99
    )

    def steps(self, tag: str, found: Change) -> float:
        """The change in the tag's direction, in steps: the tag is performed from 1 on.

        Raises `NodeError` for a tag that isn't in `TAGS`.
        """
        if tag not in TAGS:
            raise NodeError(f"[{tag}] can't be measured; tags that can: {', '.join(TAGS)}")
        attribute, direction = TAGS[tag]
        return direction * self.in_steps(attribute, found)

    def in_steps(self, attribute: Attribute, found: Change) -> float:
        """The change of one attribute, in steps; 0 for what can't be heard."""
        if attribute == "pitch":
            return 0.0 if found.pitch is None else found.pitch / self.pitch_step
        if attribute == "rate":
            return math.log(found.rate) / math.log(self.rate_step)
        if attribute == "level":
            return 0.0 if found.level is None else found.level / self.level_step
        if found.voicing is None:
            return 0.0
        return math.log(max(found.voicing, 1e-3)) / -math.log(self.voicing_step)


@dataclass
class MeasuringNode(VocalNode):
    """A `VocalNode` that measures clips against the reference voices and the usual rate."""

    per_character: float = option(0.041, "usual seconds per character, spaces included", above=0)
    offset: float = option(0.2, "usual seconds beside the characters", at_least=0)
    _usual: dict[bytes, Measures] = field(default_factory=dict, init=False, repr=False, compare=False)

    def usual_voice(self, clip: Clip, speaker: str | None) -> Measures | None:
        """The measures of the speaker's reference, measured once; None where the prompt names none.

        ``Clip.reference`` is the first speaker's. Raises `NodeError` for a reference that can't be measured.
        """
        voice = clip.voices.get(speaker or "")
        first = parse_target(clip.text).turns[:1]
        own = not first or first[0].speaker == speaker
        if voice is None and own and clip.reference is not None and clip.reference_rate is not None:
            voice = (clip.reference, clip.reference_rate)
        if voice is None:
            return None
        key = fingerprint(*voice)
        if key not in self._usual:
            try:
                self._usual[key] = measure(at_16k(*voice))
            except NodeError as error:
                raise NodeError(f"the reference voice can't be measured: {error}") from error
        return self._usual[key]

    def rate(self, clip: Clip, measures: Measures) -> float:
        """How many times as fast as usual ``Clip.spoken`` is said. Raises `NodeError` without a text."""
        characters = len(clip.spoken.strip())
        if characters == 0:
            raise NodeError("no text to tell a rate from")
        return (self.offset + self.per_character * characters) / measures.seconds
