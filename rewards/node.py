"""What a reward node is. Each stands in a file of `rewards/nodes`; docs/rewards.md shows how to add one.

A node is a dataclass whose fields are its options. It says what it gives (`Node.outputs`, `Node.texts`),
what it reads of other nodes (fields made by `reads`), and scores a batch or a single clip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from rewards.types import Clip
from rl.schema import option as option

Value = float | str


class NodeError(Exception):
    """Why one clip has no value: raised in `Node.score_clip`, or in the row's place in `Node.score`."""


@dataclass(frozen=True)
class Answer:
    """A node's row for one clip: a value (or why there is none) for each output, and JSON-able details."""

    values: Mapping[str, Value | NodeError]
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Model:
    """A model that a node loads, as `rl-doctor` asks for it.

    ``weights``: bytes in memory, and ``licence``; None: not known. ``shared``: copies in one process share
    them. ``fetched``: loading it needs the network now.
    """

    name: str
    weights: int | None
    licence: str | None
    on_gpu: bool = False
    shared: bool = False
    fetched: bool = False


Row = float | Answer | NodeError
"""What a node gives for one clip. A plain number is short for ``Answer({"": number})``."""


def reads(kind: Literal["number", "text"], help: str) -> Any:
    """A field that names another node's output, such as ``asr.text``, or the node if only one output fits."""
    return field(metadata={"help": help, "reads": kind})


@dataclass
class Node:
    """Base of all reward nodes."""

    requires: ClassVar[tuple[str, str] | None] = None
    """Module to import and the extra of auralign that installs it, where it isn't a core dependency."""

    gate: ClassVar[bool] = False
    """True for a gate: it runs first, and a clip to which it gives 0 gets ``floor`` as its total.

    A gate needs an option ``floor``, reads no other node, and says in the detail ``failed`` why it closed.
    """

    def outputs(self) -> tuple[str, ...]:
        """Names of the numbers it gives: ``""`` is called like the node, ``"x"`` is ``node.x``."""
        return ("",)

    def texts(self) -> tuple[str, ...]:
        """Names of the texts it gives. Other nodes can read them; they are stored among the details."""
        return ()

    def check(self) -> None:
        """Check options against each other and the machine. Raises `rl.errors.ConfigError`."""

    def load(self) -> None:
        """Load models. Called once, before the first score."""

    def models(self) -> Sequence[Model] | None:
        """What `load` brings into memory; None: the node has a `load`, and doesn't say. May raise
        `ConfigError`."""
        return () if type(self).load is Node.load else None

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        """One row per clip. ``inputs[field]`` holds what the field made by `reads` names, one per clip.

        Clips that a gate closed on, or for which an input is missing, are not among them.
        """
        rows: list[Row] = []
        for i, clip in enumerate(clips):
            try:
                rows.append(self.score_clip(clip, **{name: column[i] for name, column in inputs.items()}))
            except NodeError as error:
                rows.append(error)
        return rows

    def score_clip(self, clip: Clip, **inputs: Any) -> Row:
        """The row of one clip, for nodes that have nothing to gain from batches. May raise `NodeError`."""
        raise NotImplementedError(f"{type(self).__name__} defines neither score nor score_clip")
