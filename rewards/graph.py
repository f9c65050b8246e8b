"""The reward graph: check a configuration's nodes and total, then score batches of clips with them."""

from __future__ import annotations

import graphlib
import keyword
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rewards.catalogue import build_node, show, suggest
from rewards.expression import Expression, parse_expression
from rewards.node import Node
from rewards.run.options import run_options
from rewards.run.pool import Pool
from rewards.run.sample import full_name
from rewards.run.stream import Stream
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
    pools: dict[str, Pool]
    """What scores each node's batches."""

    def components(self) -> tuple[str, ...]:
        """The outputs that the total names, in its order."""
        return self.total.names

    def expression(self, text: str, key: str) -> Expression:
        """``text``, written like a total, over this graph's outputs. Raises `ConfigError`, naming ``key``."""
        return parse_expression(text, lambda name: _resolve(name, "number", self.nodes, key), key)

    def before(self, name: str) -> set[str]:
        """The nodes that are done with a clip before this one is asked: those it reads, and the gates."""
        order = list(self.nodes)
        gates = {gate for gate in self.gates if order.index(gate) < order.index(name)}
        return gates | {source.partition(".")[0] for source in self.inputs[name].values()}

    def warm_up(self) -> None:
        """Start every node's workers and load its models now rather than at the first clip."""
        for pool in self.pools.values():
            pool.fill()
        for pool in self.pools.values():
            pool.wait_until_loaded()

    def stream(self) -> Stream:
        """Score clips as they come: ``with graph.stream() as stream: stream.submit(clip); stream.scores()``.

        One stream at a time: it has the use of all workers. What holds for `score` holds for it.
        """
        self.warm_up()
        return Stream(self)

    def score(self, clips: Iterable[Clip]) -> Scores:
        """Values, total, reasons and details of ``clips``, in their order; each as if it were scored alone.

        A clip that a gate closes on isn't shown to the other nodes; its total is the gate's floor. A value
        that can't be had is NaN with its reason, and so is a total that needs it. Clips with non-finite
        samples are missing altogether: they are a codec's fault, not the policy's. An exception that is not
        a `NodeError` propagates, with a note that names the node.
        """
        with self.stream() as stream:
            for clip in clips:
                stream.submit(clip)
            return stream.scores()

    def close(self) -> None:
        """End the workers, Ray's actors with them; the next clip starts new ones."""
        for pool in self.pools.values():
            pool.close()


def build_graph(
    config: Mapping[str, Any],
    monitors: Mapping[str, Any] | None = None,
    pools: Mapping[str, Pool] | None = None,
) -> RewardGraph:
    """Check a ``rewards:`` block and build its graph; models are loaded later.

    ``config`` has ``nodes`` (options by node name; null takes a recipe's node out), ``total`` and
    ``max_missing``; ``monitors`` are further nodes, as in ``evaluation.monitors``, that can't be part of the
    total. Every node runs: those that the total doesn't use are monitors, whether or not they say
    ``monitor: true``. ``pools``: of another graph of the same ``config``, whose workers this one is to use as
    well. Raises `ConfigError`.
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
    shared = pools or {}
    for name in _idle(nodes, inputs, (*used_nodes, *declared, *gates)):
        if name not in shared:  # else it was said before
            log.warning("%s: nothing uses it; set monitor: true, or the node to null", keys[name])
    outputs = tuple(full_name(name, output) for name in nodes for output in nodes[name].outputs())
    return RewardGraph(
        nodes={name: nodes[name] for name in order},
        inputs=inputs,
        total=total,
        output_names=outputs,
        monitors=tuple(output for output in outputs if output not in used and output not in gates),
        gates=gates,
        max_missing=float(max_missing),
        pools={
            name: shared.get(name)
            or Pool(nodes[name], run_options(options[name].get("run"), f"{keys[name]}.run"), keys[name])
            for name in order
        },
    )


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
        return full_name(name, output)
    if not output and len(outputs) == 1:
        return full_name(name, outputs[0])
    known = ", ".join(full_name(name, o) for o in outputs) or "none"
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


def _idle(
    nodes: Mapping[str, Node], inputs: Mapping[str, Mapping[str, str]], wanted: Sequence[str]
) -> list[str]:
    """The nodes that serve none of the nodes ``wanted``, not even through others."""
    outputs = [full_name(name, output) for name in wanted for output in nodes[name].outputs()]
    serving = {output.partition(".")[0] for output in _used(outputs, inputs)}
    return [name for name in nodes if name not in {*serving, *wanted}]
