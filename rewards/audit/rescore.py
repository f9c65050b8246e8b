"""Score saved clips with any recipe. What is known already isn't computed again.

A node's answers are known by content: of the batch of clips, of the node's class and options, and of all that
it reads and waits for. A batch is answered from the cache as a whole or computed as a whole, in the order in
which the run submitted its clips, so that its windows are those of the run and values repeat to the bit.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from rewards.audio import fingerprint
from rewards.audit.clips import ClipSet, joined, part_of
from rewards.endpoints.cache import ResponseCache
from rewards.graph import RewardGraph
from rewards.node import Answer, Node, NodeError, Row, Value
from rewards.run.options import RunOptions
from rewards.run.pool import Pool
from rewards.run.sample import full_name
from rewards.types import Clip, Scores

Progress = Callable[[int], None]
"""Is told how many further clips are scored."""


def rescore(
    data: ClipSet,
    graph: RewardGraph,
    cache: ResponseCache | None = None,
    run_graph: RewardGraph | None = None,
    progress: Progress = lambda clips: None,
) -> Scores:
    """The scores of ``data`` by ``graph``, in the order of its clips.

    ``cache`` keeps the answers of every node. ``run_graph``: the graph that gave ``data.stored``; nodes that
    it has in common with ``graph`` take their answers from there.
    """
    keys = node_keys(graph)
    held: dict[str, str] = {}
    if run_graph is not None and data.stored is not None:
        known = {key: name for name, key in node_keys(run_graph).items()}
        held = {name: known[key] for name, key in keys.items() if key in known}
    parts = []
    for batch in data.batches:
        clips = [data.clips[place] for place in batch]
        rows: dict[str, list[Row]] = {}
        if run_graph is not None and data.stored is not None:
            stored = part_of(data.stored, batch.tolist())
            rows = {new: rows_of(old, run_graph.nodes[old], stored) for new, old in held.items()}
        parts.append(_score_batch(graph, clips, keys, rows, cache, progress))
    order = np.argsort(np.concatenate(data.batches))
    return part_of(joined(parts, graph.output_names), order.tolist())


def _score_batch(
    graph: RewardGraph,
    clips: Sequence[Clip],
    keys: Mapping[str, str],
    rows: dict[str, list[Row]],
    cache: ResponseCache | None,
    progress: Progress,
) -> Scores:
    content = batch_key(clips)
    places = {name: hashlib.sha256(f"{key} {content}".encode()).hexdigest() for name, key in keys.items()}
    if cache is not None:
        for name in graph.nodes.keys() - rows.keys():
            found = cache.get(places[name])
            if found is not None:
                rows[name] = [_read_row(row) for row in found["rows"]]
    with _with_answers(graph, clips, rows).stream() as stream:
        for clip in clips:
            stream.submit(clip)
        for _ in stream.rows():
            progress(1)
        scores = stream.scores()
    if cache is not None:
        for name in graph.nodes.keys() - rows.keys():
            answers = [_written_row(row) for row in rows_of(name, graph.nodes[name], scores)]
            cache.put(places[name], {"rows": answers})
    return scores


def node_keys(graph: RewardGraph) -> dict[str, str]:
    """By node: what decides its answers beside the clips. Two nodes with one key answer alike."""
    keys: dict[str, str] = {}
    for name, node in graph.nodes.items():
        read = {f.name for f in fields(node) if "reads" in f.metadata}
        own = {f.name: getattr(node, f.name) for f in fields(node) if f.init and f.name not in read}
        sources = {
            field: [keys[source.partition(".")[0]], source.partition(".")[2]]
            for field, source in graph.inputs[name].items()
        }
        gates = sorted(keys[gate] for gate in graph.before(name) if gate in graph.gates)
        window = graph.pools[name].options.batch_size
        said = [type(node).__module__, own, _source_of(node), sources, gates, window]
        keys[name] = hashlib.sha256(json.dumps(said, sort_keys=True, default=str).encode()).hexdigest()
    return keys


def _source_of(node: Node) -> list[str]:
    """Digests of the files that define the node, and the function that it calls, if any."""
    defined = [type(node), getattr(node, "_function", None)]
    files = [inspect.getsourcefile(inspect.unwrap(part)) for part in defined if part is not None]
    return [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if file]


def batch_key(clips: Sequence[Clip]) -> str:
    """Names ``clips`` in this order by their content."""
    digest = hashlib.sha256()
    for clip in clips:
        voices = {name: fingerprint(*voice).hex() for name, voice in clip.voices.items()}
        reference = None
        if clip.reference is not None and clip.reference_rate is not None:
            reference = fingerprint(clip.reference, clip.reference_rate).hex()
        said = [clip.text, clip.spoken, reference, voices, clip.meta]
        digest.update(fingerprint(clip.audio, clip.sample_rate))
        digest.update(json.dumps(said, sort_keys=True, default=str).encode())
    return digest.hexdigest()


def rows_of(name: str, node: Node, scores: Scores) -> list[Row]:
    """What ``node``, called ``name``, answered for each clip of ``scores``."""
    rows: list[Row] = []
    for place, reasons in enumerate(scores.reasons):
        details = dict(scores.details[place].get(name, {}))
        values: dict[str, Value | NodeError] = {}
        for output in (*node.outputs(), *node.texts()):
            full = full_name(name, output)
            text = details.pop(output, "") if output in node.texts() else None
            if full in reasons:
                values[output] = NodeError(reasons[full])
            else:
                values[output] = float(scores.values[full][place]) if text is None else str(text)
        rows.append(Answer(values, details))
    return rows


@dataclass
class _Known(Node):
    """Stands in for a node whose answers are known, by the clips' identity: equal clips may stand twice."""

    original: Node
    rows: Mapping[int, Row]

    def __post_init__(self) -> None:
        self.floor = getattr(self.original, "floor", np.nan)

    def outputs(self) -> tuple[str, ...]:
        return self.original.outputs()

    def texts(self) -> tuple[str, ...]:
        return self.original.texts()

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        return [self.rows[id(clip)] for clip in clips]


def _with_answers(
    graph: RewardGraph, clips: Sequence[Clip], rows: Mapping[str, Sequence[Row]]
) -> RewardGraph:
    """``graph`` with the nodes in ``rows`` answering from there; the others keep their workers."""
    known = {
        name: _Known(graph.nodes[name], {id(c): row for c, row in zip(clips, answers, strict=True)})
        for name, answers in rows.items()
    }
    pools = {name: Pool(node, RunOptions(), graph.pools[name].key) for name, node in known.items()}
    return replace(graph, nodes={**graph.nodes, **known}, pools={**graph.pools, **pools})


def _written_row(row: Row) -> dict[str, Any]:
    assert isinstance(row, Answer)
    return {
        "values": {name: value for name, value in row.values.items() if not isinstance(value, NodeError)},
        "missing": {name: str(value) for name, value in row.values.items() if isinstance(value, NodeError)},
        "details": dict(row.details),
    }


def _read_row(row: Mapping[str, Any]) -> Row:
    missing = {name: NodeError(reason) for name, reason in row["missing"].items()}
    return Answer({**row["values"], **missing}, row["details"])


@dataclass(frozen=True)
class Difference:
    """Of one output, or the total: ``differ`` of ``clips`` clips aren't equal to the stored value, by at most
    ``largest``; ``presence`` of them have a value on one side alone.
    """

    output: str
    clips: int
    differ: int
    largest: float
    presence: int


def differences(stored: Scores, fresh: Scores) -> list[Difference]:
    """``fresh`` against ``stored``, of the same clips: the outputs that both have, and the total."""
    columns = {
        name: (stored.values[name], fresh.values[name]) for name in fresh.values if name in stored.values
    }
    found = []
    for name, (left, right) in {"total": (stored.total, fresh.total), **columns}.items():
        presence = np.isnan(left) != np.isnan(right)
        gaps = np.abs(left - right)[~np.isnan(left) & ~np.isnan(right)]
        found.append(
            Difference(
                name,
                len(left),
                int(np.count_nonzero(gaps) + presence.sum()),
                float(gaps.max(initial=0.0)),
                int(presence.sum()),
            )
        )
    return found
