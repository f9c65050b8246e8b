"""A reward function written for TRL's trainers, on a transcript."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rewards.dotted import import_function
from rewards.node import Node, NodeError, Row, reads
from rewards.types import Clip


@dataclass
class TrlReward(Node):
    """What a TRL reward function gives: ``function(prompts=, completions=, **columns)``, a list of numbers.

    Prompts are ``Clip.text``, completions the texts that ``of`` names. The columns, all lists: ``spoken``,
    ``audio`` with ``sample_rate``, and each key of the clips' ``meta``, None for clips without it. There are
    no ``completion_ids`` and no ``trainer_state``. None in the answer is missing.
    """

    path: str = field(metadata={"help": "package.module:function, on the Python path"})
    of: str = reads("text", "what is passed as the completion, such as asr.text")
    _function: Any = field(default=None, init=False, repr=False, compare=False)

    def check(self) -> None:
        self._function = import_function(self.path)

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        names = dict.fromkeys(name for clip in clips for name in clip.meta)
        columns = {name: [clip.meta.get(name) for clip in clips] for name in names}
        columns |= {
            "spoken": [clip.spoken for clip in clips],
            "audio": [clip.audio for clip in clips],
            "sample_rate": [clip.sample_rate for clip in clips],
        }
        answers = self._function(
            prompts=[clip.text for clip in clips], completions=list(inputs["of"]), **columns
        )
        if len(answers) != len(clips):
            raise ValueError(f"{self.path} gave {len(answers)} rewards for {len(clips)} completions")
        return [
            NodeError("the reward function gave None") if value is None else float(value) for value in answers
        ]
