"""Which of two clips is better? The one that a scoring node gives more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rewards.catalogue import build_node
from rewards.node import Answer, Node, NodeError, Row, option
from rewards.types import Clip
from rl.errors import ConfigError


@dataclass
class PairScore(Node):
    """1 where the node ``by``, with its default options, gives the clip more than ``Clip.rival``, 0 where it
    gives less, 0.5 for a difference of up to ``margin``. A clip without a rival is missing.
    """

    by: str = option("dnsmos", "type of a node that reads no other and gives one number")
    margin: float = option(
        0.025, "a difference up to this is a tie (of dnsmos: 0.1 opinion scores)", at_least=0
    )
    _judge: Any = field(default=None, init=False, repr=False, compare=False)

    def check(self) -> None:
        judge = build_node({"type": self.by}, "by")
        if judge.outputs() != ("",):
            raise ConfigError(f"by: {self.by} doesn't give one number; name a node that does, such as dnsmos")

    def load(self) -> None:
        self._judge = build_node({"type": self.by}, "pair_score.by")
        self._judge.load()

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        paired = [clip for clip in clips if clip.rival is not None]
        rivals = [
            replace(clip, audio=clip.rival[0], sample_rate=clip.rival[1]) for clip in paired if clip.rival
        ]
        scores = iter(zip(self._judge.score(paired, {}), self._judge.score(rivals, {}), strict=True))
        return [
            NodeError("there is no other clip to compare with")
            if clip.rival is None
            else self._row(*next(scores))
            for clip in clips
        ]

    def _row(self, own: Row, other: Row) -> Row:
        values = [row.values[""] if isinstance(row, Answer) else row for row in (own, other)]
        for name, value in zip(("the clip", "the other clip"), values, strict=True):
            if isinstance(value, NodeError):
                return NodeError(f"{name}: {value}")
        difference = float(values[0]) - float(values[1])  # type: ignore[arg-type]
        return 0.5 if abs(difference) <= self.margin else float(difference > 0)
