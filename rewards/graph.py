"""The reward graph: check a configuration's nodes and total, then score batches of clips with them."""

from __future__ import annotations

import graphlib
import keyword
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rewards.catalogue import build_node, show, suggest
from rewards.expression import Expression, parse_expression
from rewards.node import Answer, Node, NodeError, Row
from rewards.types import Clip, Scores
from rl.errors import ConfigError

log = logging.getLogger(__name__)

_KEYS = ("nodes", "total", "max_missing", "recipe")


@dataclass
class RewardGraph:
    """Nodes in the order in which they run, and the total over their outputs. Made by `build_graph`."""

    nodes: dict[str, Node]
    inputs: dict[str, dict[str, str]]
    """``inputs[node][field]``: the output that the field reads."""
    total: Expression
    output_names: tuple[str, ...]
    """Every number the nodes give: the keys of `Scores.values`."""
    monitors: tuple[str, ...]
    """The numbers that have no part in the total, not even through other nodes or as a gate."""
    gates: tuple[str, ...]
    """Nodes that close on a clip, whatever the total says."""
    max_missing: float
    _loaded: bool = field(default=False, init=False, repr=False)

    def components(self) -> tuple[str, ...]:
        """The outputs that the total names, in its order."""
        return self.total.names

    def warm_up(self) -> None:
        """Load every node's models now rather than at the first `score`."""
        if not self._loaded:
            for node in self.nodes.values():
                node.load()
            self._loaded = True

    def score(self, clips: Sequence[Clip]) -> Scores:
        """Values, total, reasons and details of ``clips``, in their order; each as if it were scored alone.

        A clip that a gate closes on isn't shown to the other nodes; its total is the gate's floor. A value
        that can't be had is NaN with its reason, and so is a total that needs it. Clips with non-finite
        samples are missing altogether: they are a codec's fault, not the policy's. An exception that is not
        a `NodeError` propagates, with a note that names the node.
        """
        self.warm_up()
        batch = _Batch(self, clips)
        for name in self.nodes:
            batch.run(name)
        return batch.scores()


class _Batch:
    """The state of one `RewardGraph.score`."""

    def __init__(self, graph: RewardGraph, clips: Sequence[Clip]) -> None:
        self.graph, self.clips = graph, clips
        size = len(clips)
        self.values = {name: np.full(size, np.nan) for name in graph.output_names}
        self.texts: dict[str, list[str | None]] = {}
        self.reasons: list[dict[str, str]] = [{} for _ in clips]
        self.details: list[dict[str, dict[str, Any]]] = [{} for _ in clips]
        self.floor = np.full(size, np.nan)
        self.closed = ["" if np.isfinite(clip.audio).all() else "the audio isn't finite" for clip in clips]

    def run(self, name: str) -> None:
        """Score one node on the clips that are open and have its inputs."""
        node, inputs = self.graph.nodes[name], self.graph.inputs[name]
        for text in node.texts():
            self.texts[_full(name, text)] = [None] * len(self.clips)
        asked = []
        for b in range(len(self.clips)):
            reason = self.closed[b] or self._lacks(b, inputs.values())
            if reason:
                self._missing(b, name, reason)
            else:
                asked.append(b)
        if not asked:
            return
        columns = {key: [self._read(source, b) for b in asked] for key, source in inputs.items()}
        try:
            rows = node.score([self.clips[b] for b in asked], columns)
        except Exception as error:
            error.add_note(f"in the reward node {name} ({type(node).__name__})")
            raise
        for b, row in zip(asked, rows, strict=True):
            self._take(b, name, row)
            if name in self.graph.gates and self.values[name][b] == 0:
                self.closed[b] = f"gated by {name}: {self.details[b][name]['failed']}"
                self.floor[b] = node.floor  # type: ignore[attr-defined]

    def scores(self) -> Scores:
        total = self.graph.total.evaluate(self.values)
        gated = ~np.isnan(self.floor)
        for b in np.flatnonzero(~gated):
            needed = [
                name for name in (*self.graph.gates, *self.graph.total.names) if name in self.reasons[b]
            ]
            if needed:
                total[b] = np.nan
                self.reasons[b]["total"] = f"needs {needed[0]}: {self.reasons[b][needed[0]]}"
            elif not np.isfinite(total[b]):
                self.reasons[b]["total"] = f"the expression gives {total[b]}"
                total[b] = np.nan
        total[gated] = self.floor[gated]
        return Scores(self.values, total, self.reasons, self.details, gated)

    def _read(self, source: str, b: int) -> float | str | None:
        return self.texts[source][b] if source in self.texts else float(self.values[source][b])

    def _lacks(self, b: int, sources: Any) -> str:
        for source in sources:
            if source in self.reasons[b]:
                return f"needs {source}: {self.reasons[b][source]}"
        return ""

    def _missing(self, b: int, name: str, reason: str) -> None:
        node = self.graph.nodes[name]
        for output in (*node.outputs(), *node.texts()):
            self.reasons[b][_full(name, output)] = reason

    def _take(self, b: int, name: str, row: Row) -> None:
        node = self.graph.nodes[name]
        if isinstance(row, NodeError):
            self._missing(b, name, str(row))
            return
        answer = row if isinstance(row, Answer) else Answer({"": row})
        details = dict(answer.details)
        for output in (*node.outputs(), *node.texts()):
            full, value = _full(name, output), answer.values[output]
            if isinstance(value, NodeError):
                self.reasons[b][full] = str(value)
            elif full in self.texts:
                self.texts[full][b] = details[output] = str(value)
            elif np.isfinite(float(value)):
                self.values[full][b] = value
            else:
                self.reasons[b][full] = f"the node gave {value}"
        if details:
            self.details[b][name] = details


def build_graph(config: Mapping[str, Any], monitors: Mapping[str, Any] | None = None) -> RewardGraph:
    """Check a ``rewards:`` block and build its graph; models are loaded later.

    ``config`` has ``nodes`` (options by node name; null takes a recipe's node out), ``total`` and
    ``max_missing``; ``monitors`` are further nodes, as in ``evaluation.monitors``, that can't be part of the
    total. Every node runs: those that the total doesn't use are monitors, whether or not they say
    ``monitor: true``. Raises `ConfigError`.
    """
    for key in config:
        if key not in _KEYS:
            raise ConfigError(f"rewards.{key}: there is no such key; {suggest(str(key), _KEYS)}")
    own, extra = _present(config.get("nodes"), "rewards.nodes"), _present(monitors, "evaluation.monitors")
    for name in own.keys() & extra.keys():
        raise ConfigError(f"evaluation.monitors.{name}: rewards.nodes has a node of this name; rename it")
    options = {**own, **extra}
    keys = {
        name: f"rewards.nodes.{name}" if name in own else f"evaluation.monitors.{name}" for name in options
    }
    max_missing = config.get("max_missing", 0.2)
    if isinstance(max_missing, bool) or not isinstance(max_missing, int | float) or not 0 <= max_missing <= 1:
        raise ConfigError(f"rewards.max_missing: must be a number from 0 to 1, not {show(max_missing)}")

    nodes = {name: _build(name, options[name], keys[name]) for name in keys}
    inputs = {name: _inputs(name, nodes, keys[name]) for name in nodes}
    order = _order(nodes, inputs, keys)
    total = parse_expression(
        config.get("total", ""),
        lambda name: _resolve(name, "number", nodes, "rewards.total"),
        "rewards.total",
    )

    declared = {name for name in nodes if name in extra or options[name].get("monitor", False)}
    used = _used(total.names, inputs)
    used_nodes = {output.partition(".")[0] for output in used}
    for name in declared & used_nodes:
        raise ConfigError(f"rewards.total: depends on {keys[name]}, a monitor; use another output instead")
    gates = tuple(name for name in order if nodes[name].gate and name not in declared)
    idle = [name for name in nodes if name not in used_nodes and name not in declared and name not in gates]
    if idle:
        log.info("rewards.total doesn't use %s: computed and stored as monitors", ", ".join(idle))
    outputs = tuple(_full(name, output) for name in nodes for output in nodes[name].outputs())
    return RewardGraph(
        nodes={name: nodes[name] for name in order},
        inputs=inputs,
        total=total,
        output_names=outputs,
        monitors=tuple(output for output in outputs if output not in used and output not in gates),
        gates=gates,
        max_missing=float(max_missing),
    )


def _full(name: str, output: str) -> str:
    return f"{name}.{output}" if output else name


def _present(nodes: Any, key: str) -> dict[str, Any]:
    """The nodes of a mapping, without those set to null, which is how a recipe's node is taken out."""
    if not isinstance(nodes or {}, Mapping):
        raise ConfigError(f"{key}: must be a mapping of node names to options, not {show(nodes)}")
    return {name: options for name, options in (nodes or {}).items() if options is not None}


def _build(name: Any, options: Any, key: str) -> Node:
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise ConfigError(f"{key}: a node's name must be letters, digits and _, so that the total can use it")
    node = build_node(options, key)
    if not isinstance(options.get("monitor", False), bool):
        raise ConfigError(f"{key}.monitor: must be true or false, not {show(options['monitor'])}")
    return node


def _inputs(name: str, nodes: Mapping[str, Node], key: str) -> dict[str, str]:
    """The outputs that a node's `reads` fields name, in full, by field."""
    return {
        f.name: _resolve(getattr(nodes[name], f.name), f.metadata["reads"], nodes, f"{key}.{f.name}")
        for f in fields(nodes[name])
        if "reads" in f.metadata
    }


def _resolve(written: str, kind: str, nodes: Mapping[str, Node], key: str) -> str:
    """The full name of the output meant by ``node.output``, or by ``node`` where only one output fits."""
    name, _, output = written.partition(".")
    if name not in nodes:
        raise ConfigError(f"{key}: there is no node {name}; {suggest(name, nodes)}")
    outputs = nodes[name].outputs() if kind == "number" else nodes[name].texts()
    others = nodes[name].texts() if kind == "number" else nodes[name].outputs()
    if output in outputs:
        return _full(name, output)
    if not output and len(outputs) == 1:
        return _full(name, outputs[0])
    known = ", ".join(_full(name, o) for o in outputs) or "none"
    if output in others and output:
        raise ConfigError(f"{key}: {written} isn't a {kind}; {kind} outputs of {name}: {known}")
    problem = f"{name} has no output {output}" if output else f"{name} alone doesn't name one {kind} output"
    raise ConfigError(f"{key}: {problem}; {kind} outputs of {name}: {known}")


def _order(
    nodes: Mapping[str, Node], inputs: Mapping[str, Mapping[str, str]], keys: Mapping[str, str]
) -> list[str]:
    """Gates first, then every node behind those that it reads."""
    edges = {name: [source.partition(".")[0] for source in inputs[name].values()] for name in nodes}
    try:
        order = list(graphlib.TopologicalSorter(edges).static_order())
    except graphlib.CycleError as error:
        cycle = error.args[1][::-1]
        raise ConfigError(
            f"{keys[cycle[0]]}: the nodes {' -> '.join(cycle)} read each other in a circle; cut it"
        ) from error
    return sorted(order, key=lambda name: not nodes[name].gate)


def _used(names: Sequence[str], inputs: Mapping[str, Mapping[str, str]]) -> set[str]:
    """``names`` and every output that they are made from."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        output = queue.pop()
        if output not in found:
            found.add(output)
            queue += inputs[output.partition(".")[0]].values()
    return found
