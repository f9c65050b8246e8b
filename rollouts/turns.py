"""Saying a prompt turn by turn: each part of its text is generated after those before it, and hears them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import Tensor

from rl.errors import PromptError
from rollouts.engine import CallStats, Engine, in_order, stream
from rollouts.types import Prompt, Reference, Rollout, SamplingParams, Turn

_TAG = re.compile(r"(?=<\|speaker:\d+\|>)")


@dataclass(frozen=True)
class TurnRule:
    """How much is said at once: so many speaker turns, together no longer than ``size`` UTF-8 bytes.

    The published implementation of S2 has 5 and 300.
    """

    turns: int
    size: int


def cut_into_parts(prompt: Prompt, rule: TurnRule) -> list[str]:
    """``prompt.text`` as parts to say one after the other, cut before speaker tags as S2's reference does.

    The turns of a part stand on lines of their own. One turn that is too long stays whole, and a text
    without speaker tags is one part. Raises `PromptError` for text before the first tag: it has no speaker.
    """
    turns = [turn.strip() for turn in _TAG.split(prompt.text)]
    if len(turns) == 1:
        return [prompt.text]
    if turns[0]:
        raise PromptError(
            f"prompt {prompt.id}: `{turns[0][:40]}` stands before the first speaker tag; turn by turn, all "
            "of a text needs a speaker"
        )
    parts: list[list[str]] = []
    size = 0
    for turn in turns[1:]:
        own = len(turn.encode())
        if not parts or len(parts[-1]) == rule.turns or size + own > rule.size:
            parts.append([])
            size = 0
        parts[-1].append(turn)
        size += own
    return ["\n".join(part) for part in parts]


@dataclass
class _Talk:
    """A sample on its way: what it has to say, and what it has said so far."""

    prompt: Prompt
    index: int
    texts: list[str]
    said: list[Rollout] = field(default_factory=list)

    def next_prompt(self) -> Prompt:
        """What comes next, under an id of its own, which seeds its noise."""
        heard = (Reference(text, rollout.codes) for text, rollout in zip(self.texts, self.said, strict=False))
        number = len(self.said)
        return replace(
            self.prompt,
            id=f"{self.prompt.id}/turn {number}/{self.index}",
            text=self.texts[number],
            history=(*self.prompt.history, *heard),
        )

    def rollout(self) -> Rollout:
        """All turns as one rollout."""
        return Rollout(
            prompt=self.prompt,
            sample_index=self.index,
            seed=self.said[0].seed,
            codes=np.concatenate([turn.codes for turn in self.said]),
            logprobs=np.concatenate([turn.logprobs for turn in self.said]),
            end_logprob=self.said[-1].end_logprob,
            finish_reason="length" if any(turn.end_logprob is None for turn in self.said) else "eos",
            policy_version=min(turn.policy_version for turn in self.said),
            turns=tuple(
                Turn(text, len(turn.codes), turn.end_logprob)
                for text, turn in zip(self.texts, self.said, strict=True)
            ),
        )


class TurnEngine:
    """Implements :class:`rollouts.engine.StreamingEngine` over ``engine``, which says each prompt in parts.

    ``max_frames`` limits one part. All samples' first parts are sampled together, then all second parts, and
    so on. ``stats`` are those of all parts.
    """

    def __init__(self, engine: Engine, rule: TurnRule) -> None:
        self.engine, self.rule = engine, rule
        self.stats = CallStats()

    @property
    def version(self) -> int:
        """Weight loads so far."""
        return self.engine.version

    @version.setter
    def version(self, version: int) -> None:
        self.engine.version = version

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> list[Rollout]:
        """See :class:`rollouts.engine.Engine`."""
        return in_order(self.stream(prompts, n, sampling, seed), prompts)

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        """See :class:`rollouts.engine.StreamingEngine`. Raises `PromptError` as `cut_into_parts` does."""
        talks = [_Talk(prompt, i, cut_into_parts(prompt, self.rule)) for prompt in prompts for i in range(n)]
        asked = {(talk.prompt.id, talk.index): talk for talk in talks}
        now, each = [replace(talk.prompt, text=talk.texts[0]) for talk in talks[::n]], n
        stats = CallStats()
        while asked:
            for rollout in stream(self.engine, now, each, sampling, seed):
                talk = asked[rollout.prompt.id, rollout.sample_index]
                talk.said.append(rollout)
                if len(talk.said) == len(talk.texts):
                    yield talk.rollout()
            stats += self.engine.stats
            unfinished = [talk for talk in asked.values() if len(talk.said) < len(talk.texts)]
            going = [(talk, talk.next_prompt()) for talk in unfinished]
            asked = {(prompt.id, 0): talk for talk, prompt in going}
            now, each = [prompt for _, prompt in going], 1
        self.stats = stats

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See :class:`rollouts.engine.Engine`."""
        self.engine.load_weights(weights)

    def sleep(self) -> None:
        """See :class:`rollouts.engine.Engine`."""
        self.engine.sleep()

    def wake(self) -> None:
        """See :class:`rollouts.engine.Engine`."""
        self.engine.wake()

    def close(self) -> None:
        """See :class:`rollouts.engine.Engine`."""
        self.engine.close()
