"""The reward nodes: can each be built, what does it load, and does the whole graph hold together?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rewards.catalogue import build_node
from rewards.endpoints.families import shared_bias
from rewards.graph import RewardGraph, build_graph
from rewards.node import Model, Node
from rl.arithmetic.memory import LIBRARIES, Component, Where
from rl.doctor.check import Check, failed
from rl.errors import AuralignError
from rl.schema import RunConfig

_ACTOR = LIBRARIES // 2
"""Bytes of an actor's process before it has a model."""


@dataclass(frozen=True)
class Nodes:
    """``built``: the nodes that can be, by name, and the ``models`` of each, None where it doesn't say.
    ``graph``: with the evaluation's monitors; None: it can't be made. ``needed``: nodes on which the total
    depends."""

    built: dict[str, Node]
    models: dict[str, Sequence[Model] | None]
    graph: RewardGraph | None
    needed: frozenset[str]


def nodes(run: RunConfig) -> tuple[list[Check], Nodes]:
    """One check for each node that can't be built, or one for the graph, with the evaluation's monitors."""
    checks, built, models = list[Check](), dict[str, Node](), dict[str, Sequence[Model] | None]()
    for section, options in (
        ("rewards.nodes", run.rewards.nodes),
        ("evaluation.monitors", run.evaluation.monitors),
    ):
        for name, node in _present(options).items():
            try:
                one = build_node(node, f"{section}.{name}")
                models[name] = one.models()
                built[name] = one
            except AuralignError as error:
                checks.append(failed(f"reward {name}", error, f"mend {section}.{name}"))
            except (ImportError, SyntaxError) as error:
                remedy = f"install what it needs, or mend {section}.{name}"
                checks.append(Check(f"reward {name}", f"can't be imported ({error})", "cannot run", remedy))
            except OSError as error:
                words = f"a file of its model can't be read ({error})"
                checks.append(
                    Check(f"reward {name}", words, "cannot run", f"fetch it again, or mend {section}.{name}")
                )
    if checks:
        return checks, Nodes(built, models, None, frozenset(built))
    try:
        graph = build_graph(asdict(run.rewards), run.evaluation.monitors)
    except AuralignError as error:
        return [failed("rewards", error)], Nodes(built, models, None, frozenset(built))
    used = {name.partition(".")[0] for name in graph.components()} | set(graph.gates)
    while more := set().union(*(graph.before(name) for name in used)) - used:
        used |= more
    checks.append(Check("rewards", f"{len(built)} nodes; total: {' '.join(run.rewards.total.split())}"))
    return checks, Nodes(built, models, graph, frozenset(used))


def bias(run: RunConfig, found: Nodes, policy_type: str) -> list[Check]:
    """Judges and captioners of one family, or of the policy's."""
    warnings = [text.rpartition("; ") for text in shared_bias(found.built, [run.model.path, policy_type])]
    return [Check("rewards", words, "warning", remedy) for words, _, remedy in warnings]


def downloads(found: Nodes) -> list[Check]:
    """Models that the network is needed for at first use."""
    remedy = "let it load once with a network, or name a local file or folder"
    return [
        Check(f"reward {name}", f"{model.name} isn't here yet: fetched at first use", "warning", remedy)
        for name, models in found.models.items()
        for model in models or ()
        if model.fetched
    ]


def components(found: Nodes, gpu: bool) -> tuple[list[Component], list[str]]:
    """What the nodes' models hold, and the nodes that don't say."""
    parts, unknown = list[Component](), list[str]()
    for name, models in found.models.items():
        options = found.graph.pools[name].options if found.graph else None
        copies = options.workers if options else 1
        actors = options is not None and options.where == "ray"
        if models is None:
            unknown.append(name)
            continue
        for model in models:
            if model.weights is None:
                unknown.append(name)
                continue
            own = copies if actors or not model.shared else 1
            on_gpu = model.on_gpu and gpu and not (actors and options is not None and options.num_gpus == 0)
            where: Where = "gpu" if on_gpu else "host"
            parts.append(Component(f"reward {name}: {model.name}", own * model.weights, where))
        if actors:
            parts.append(Component(f"reward {name}: processes", copies * _ACTOR, "host"))
    return parts, unknown


def _present(options: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: node for name, node in (options or {}).items() if node is not None}
