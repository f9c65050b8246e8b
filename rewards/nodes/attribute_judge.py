"""Does a measured caption say what the instruction asks for? A judge without a language model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewards.node import Answer, NodeError, reads
from rewards.tags import parse_target
from rewards.types import Clip
from rewards.vocal import Change, VocalNode

_CAPTION = re.compile(
    r"(?:no pitch|pitch [\d.]+ Hz \((?P<pitch>[+-][\d.]+) semitones\)), "
    r"rate [\d.]+ characters per second \((?P<rate>[\d.]+) of the usual\), "
    r"(?:noise masks level and voicing|level -?[\d.]+ dBFS \((?P<level>[+-][\d.]+) dB\), "
    r"\d+% voiced \((?P<voicing>[\d.]+) of the usual\))"
)


@dataclass(kw_only=True)
class AttributeJudge(VocalNode):
    """How far the caption has what ``Clip.text``'s vocal tags ask for, 0 to 100, and ``.performed``: 1 where
    every tag is, else 0.

    Each tag gives 100 * min(1, change / step), at least 0; their mean counts. A text without vocal tags asks
    for nothing and has 100 and 1. A tag that can't be measured, one that governs only part of the text (use
    vocal_tags for those), or a caption that isn't acoustic_caption's makes the clip missing.
    """

    caption: str = reads("text", "what acoustic_caption says, such as caption.text")

    def outputs(self) -> tuple[str, ...]:
        return ("", "performed")

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        target = parse_target(clip.text)
        found = read_caption(inputs["caption"])
        scores = {}
        for instruction in target.instructions:
            if instruction.stop - instruction.start < len(target.words):
                raise NodeError(f"[{instruction.tag}] governs part of the text; the caption is of the whole")
            scores[instruction.tag] = 100 * float(np.clip(self.steps(instruction.tag, found), 0, 1))
        score = float(np.mean(list(scores.values()))) if scores else 100.0
        return Answer({"": score, "performed": float(score == 100)}, {"tags": scores})


def read_caption(caption: str) -> Change:
    """The changes that a caption of acoustic_caption states. Raises `NodeError` for any other."""
    stated = _CAPTION.search(caption)
    if stated is None:
        raise NodeError("the caption states no measured changes; use acoustic_caption or another judge")

    def figure(name: str) -> float | None:
        return None if stated[name] is None else float(stated[name])

    return Change(figure("pitch"), float(stated["rate"]), figure("level"), figure("voicing"))
