"""A reward that is a plain Python function, named by its dotted path."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rewards.dotted import import_function
from rewards.node import Node, Row
from rewards.types import Clip


@dataclass
class Function(Node):
    """What ``function(clip)`` returns for a `rewards.types.Clip`: a number, or a `rewards.node.Answer` with
    the output "". It may raise `NodeError` to say why there is none.
    """

    path: str = field(metadata={"help": "package.module:function, on the Python path"})
    _function: Any = field(default=None, init=False, repr=False, compare=False)

    def check(self) -> None:
        self._function = import_function(self.path)

    def score_clip(self, clip: Clip, **inputs: Any) -> Row:
        return self._function(clip)
