"""One clip on its way through a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rewards.expression import Expression
from rewards.node import Answer, Node, NodeError, Row
from rewards.types import Clip, ClipScore


def full_name(node: str, output: str) -> str:
    """How the total and other nodes call an output."""
    return f"{node}.{output}" if output else node


class Sample:
    """What the nodes have said of one clip so far."""

    def __init__(self, clip: Clip) -> None:
        self.clip = clip
        self.values: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.reasons: dict[str, str] = {}
        self.details: dict[str, dict[str, Any]] = {}
        self.floor = np.nan
        self.closed = "" if np.isfinite(clip.audio).all() else "the audio isn't finite"
        """Why no further node is asked; empty while they are."""

    def lacks(self, sources: Iterable[str]) -> str:
        """Why a node that reads ``sources`` can't be asked; empty where it can."""
        if self.closed:
            return self.closed
        for source in sources:
            if source in self.reasons:
                return f"needs {source}: {self.reasons[source]}"
        return ""

    def read(self, source: str) -> float | str:
        return self.texts[source] if source in self.texts else self.values[source]

    def miss(self, name: str, node: Node, reason: str) -> None:
        """No output of the node has a value."""
        for output in (*node.outputs(), *node.texts()):
            self.reasons[full_name(name, output)] = reason

    def take(self, name: str, node: Node, row: Row, closes: bool) -> None:
        """The node's answer. ``closes``: the node is a gate, and a zero closes it."""
        if isinstance(row, NodeError):
            self.miss(name, node, str(row))
            return
        answer = row if isinstance(row, Answer) else Answer({"": row})
        details, texts = dict(answer.details), node.texts()
        for output in (*node.outputs(), *texts):
            full, value = full_name(name, output), answer.values[output]
            if isinstance(value, NodeError):
                self.reasons[full] = str(value)
            elif output in texts:
                self.texts[full] = details[output] = str(value)
            elif np.isfinite(float(value)):
                self.values[full] = float(value)
            else:
                self.reasons[full] = f"the node gave {value}"
        if details:
            self.details[name] = details
        if closes and self.values.get(name) == 0:
            self.closed = f"gated by {name}: {details['failed']}"
            self.floor = node.floor  # type: ignore[attr-defined]

    def score(
        self, total: Expression, gates: Sequence[str], outputs: Sequence[str], nodes: Iterable[str]
    ) -> ClipScore:
        """The finished clip, its values and details in the order of ``outputs`` and ``nodes``."""
        values = {name: self.values.get(name, np.nan) for name in outputs}
        reasons = {name: self.reasons[name] for name in sorted(self.reasons)}
        gated = not np.isnan(self.floor)
        result = float(self.floor)
        if not gated:
            needed = [name for name in (*gates, *total.names) if name in self.reasons]
            if needed:
                reasons["total"] = f"needs {needed[0]}: {self.reasons[needed[0]]}"
            else:
                result = float(total.evaluate({name: np.array([values[name]]) for name in total.names})[0])
                if not np.isfinite(result):
                    reasons["total"] = f"the expression gives {result}"
                    result = np.nan
        details = {name: self.details[name] for name in nodes if name in self.details}
        return ClipScore(values, result, reasons, details, gated)
