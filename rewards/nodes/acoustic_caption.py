"""Describe how a clip is spoken in one sentence: measured figures, no model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rewards.acoustics import Measures, measure
from rewards.audio import at_16k
from rewards.node import Answer, NodeError
from rewards.tags import parse_target
from rewards.types import Clip
from rewards.vocal import Attribute, Change, MeasuringNode, change

_ADJECTIVES: dict[Attribute, tuple[str, str]] = {
    "pitch": ("high", "low"),
    "rate": ("fast", "slow"),
    "level": ("loud", "soft"),
    "voicing": ("", "whispering"),
}
"""For a change of a step or more, up and down."""


@dataclass
class AcousticCaption(MeasuringNode):
    """``.text``: pitch, rate, level and voicing of the whole clip, in words and figures, and how they differ
    from the reference voice and the usual rate. The numbers are the differences: ``.pitch`` in semitones,
    ``.rate`` and ``.voicing`` as factors, ``.level`` in dB.

    A clip without a reference voice is missing, and so are level and voicing in noise.
    """

    def outputs(self) -> tuple[str, ...]:
        return ("pitch", "rate", "level", "voicing")

    def texts(self) -> tuple[str, ...]:
        return ("text",)

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        turns = parse_target(clip.text).turns
        usual = self.usual_voice(clip, turns[0].speaker if turns else None)
        if usual is None:
            raise NodeError("the prompt names no reference voice")
        found = measure(at_16k(clip.audio, clip.sample_rate))
        changes = change(found, usual, self.rate(clip, found))
        speed = len(clip.spoken.strip()) / found.seconds
        unheard, masked = NodeError("no pitch to hear"), NodeError("noise masks it")
        return Answer(
            {
                "text": describe(found, changes, speed, self.words_for(changes)),
                "pitch": unheard if changes.pitch is None else changes.pitch,
                "rate": changes.rate,
                "level": masked if changes.level is None else changes.level,
                "voicing": masked if changes.voicing is None else changes.voicing,
            }
        )

    def words_for(self, changes: Change) -> list[str]:
        """Adjectives for the changes of a step or more."""
        words = []
        for attribute, (up, down) in _ADJECTIVES.items():
            steps = self.in_steps(attribute, changes)
            words.append(up if steps >= 1 else down if steps <= -1 else "")
        return [word for word in words if word]


def describe(found: Measures, changes: Change, speed: float, adjectives: list[str]) -> str:
    """The caption. `rewards.nodes.attribute_judge` reads its figures back."""
    kind = ", ".join(adjectives) or "plain"
    if changes.pitch is None:
        pitch = "no pitch"
    else:
        pitch = f"pitch {found.pitch:.0f} Hz ({changes.pitch:+.1f} semitones)"
    if changes.level is None or changes.voicing is None:
        rest = "noise masks level and voicing"
    else:
        level = f"level {found.level:.1f} dBFS ({changes.level:+.1f} dB)"
        rest = f"{level}, {found.voiced:.0%} voiced ({changes.voicing:.2f} of the usual)"
    return (
        f"A {kind} voice: {pitch}, "
        f"rate {speed:.1f} characters per second ({changes.rate:.2f} of the usual), "
        f"{rest}."
    )
