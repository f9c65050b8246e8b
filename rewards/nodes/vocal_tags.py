"""Are vocal tags such as [slow] and [whisper] performed where they stand? Measured, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewards.acoustics import Measures, measure, noise_floor
from rewards.audio import SAMPLE_RATE, at_16k
from rewards.node import Answer, NodeError, reads
from rewards.tags import Instruction, Target, parse_target
from rewards.types import Clip
from rewards.vocal import Change, MeasuringNode, can_compare, change
from rewards.words import Word, locate, read_words


@dataclass(kw_only=True)
class VocalTags(MeasuringNode):
    """``.performed`` is the share of vocal tags performed, ``.missed`` their number, ``.degree`` how far on
    average: 0 to 1, growing up to the step that counts. A text without vocal tags has 1, 0 and 1.

    A tagged span is compared with the speaker's words without a tag or, where there are none with a pitch,
    with the speaker's reference voice and the usual rate. A tag that can't be measured makes the clip
    missing.
    """

    words: str = reads("text", "word times, such as asr.words")

    def outputs(self) -> tuple[str, ...]:
        return ("performed", "missed", "degree")

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        target = parse_target(clip.text)
        placed = locate(target.words, read_words(inputs["words"]))
        audio = at_16k(clip.audio, clip.sample_rate)
        found: list[tuple[str, float]] = []
        for instruction in target.instructions:
            done = self._change(clip, audio, target, placed, instruction)
            steps = 0.0 if done is None else self.steps(instruction.tag, done)
            found.append((instruction.tag, steps))
        degrees = [min(max(steps, 0.0), 1.0) for _, steps in found]
        missed = sum(degree < 1 for degree in degrees)
        values = {
            "performed": 1 - missed / len(degrees) if degrees else 1.0,
            "missed": float(missed),
            "degree": float(np.mean(degrees)) if degrees else 1.0,
        }
        return Answer(values, {"tags": [{"tag": tag, "steps": steps} for tag, steps in found]})

    def _change(
        self,
        clip: Clip,
        audio: np.ndarray,
        target: Target,
        placed: Sequence[Word | None],
        instruction: Instruction,
    ) -> Change | None:
        """How the tagged words differ from the usual voice; None where they aren't spoken."""
        if instruction.start == instruction.stop:
            raise NodeError(f"[{instruction.tag}] has no words behind it to measure")
        if instruction.stop - instruction.start == len(target.words):
            whole = measure(audio)
            return change(whole, self._reference(clip, instruction), self.rate(clip, whole))
        tagged = [placed[i] for i in range(instruction.start, instruction.stop)]
        plain = [placed[i] for i in _plain_words(target, instruction.speaker)]
        own, rest = _cut(audio, tagged), _cut(audio, plain)
        if own is None:
            return None
        floor = noise_floor(audio)
        part = measure(own, floor)
        usual = None if rest is None else measure(rest, floor)
        if usual is not None and can_compare(usual):
            return change(part, usual, _speed(tagged) / _speed(plain))
        return change(part, self._reference(clip, instruction), _speed(tagged) * self.per_character)

    def _reference(self, clip: Clip, instruction: Instruction) -> Measures:
        usual = self.usual_voice(clip, instruction.speaker)
        if usual is None:
            raise NodeError(
                f"nothing to compare [{instruction.tag}] with: no words without a tag, no reference voice"
            )
        return usual


def _plain_words(target: Target, speaker: str | None) -> list[int]:
    """Positions of the speaker's words that no vocal tag governs."""
    tagged = {i for each in target.instructions for i in range(each.start, each.stop)}
    return [
        i
        for turn in target.turns
        if turn.speaker == speaker
        for i in range(turn.start, turn.stop)
        if i not in tagged
    ]


def _cut(audio: np.ndarray, words: Sequence[Word | None]) -> np.ndarray | None:
    """The audio of the words that are spoken, put together; None where it is under 0.1 s."""
    pieces = [
        audio[round(word.start * SAMPLE_RATE) : round(word.end * SAMPLE_RATE)]
        for word in words
        if word is not None
    ]
    whole = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    return whole if len(whole) >= SAMPLE_RATE // 10 else None


def _speed(words: Sequence[Word | None]) -> float:
    """Characters per second, a space after each word, of the words that are spoken."""
    spoken = [word for word in words if word is not None]
    return sum(len(word.text) + 1 for word in spoken) / sum(word.end - word.start for word in spoken)
