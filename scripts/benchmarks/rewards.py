"""Time a configuration's reward graph against calling its nodes one after the other, one clip at a time.

The clips are sampled from the configuration's policy, once, and kept in a temporary folder. The use of the
processor is this process's: Ray's actors are not in it. The graph's own share is measured with every node in
the caller's thread.
"""

import argparse
import copy
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from rewards.graph import RewardGraph, build_graph
from rewards.node import Node
from rewards.run.sample import Sample
from rewards.types import Clip, Scores
from rl.config import load_config
from rl.errors import ConfigError
from rl.parts import build_parts, sample_and_score
from rl.prompts_file import load_prompts
from rl.schema import RunConfig
from rl.scoring import clip_of
from rollouts.store import read_step, step_path, write_step

SAMPLES = 4
"""Of each prompt."""


def sampled_clips(config: RunConfig, count: int) -> list[Clip]:
    """``count`` clips of the training prompts, by the configuration's policy and codec."""
    prompts = load_prompts(config.prompts.train)[: count // SAMPLES]
    if count != len(prompts) * SAMPLES:
        raise ConfigError(f"--clips {count}: must be a multiple of {SAMPLES}, and prompts.train long enough")
    source = [asdict(config.model), asdict(config.rollouts), asdict(config.prompts), config.seed, count]
    digest = hashlib.sha256(json.dumps(source).encode()).hexdigest()[:12]
    file = step_path(Path(tempfile.gettempdir(), f"auralign_bench_rewards_{digest}"), 0, "sample")
    if not file.exists():
        parts = build_parts(config)
        unscored = build_graph({"nodes": {"length": {"type": "duration"}}, "total": "length"})
        record = sample_and_score(
            parts,
            unscored,
            prompts,
            config,
            samples=SAMPLES,
            temperature=config.rollouts.temperature,
            seed=config.seed,
            step=0,
            split="sample",
        )
        write_step(file, record)
    record = read_step(file)
    pairs = zip(record.rollouts, record.audio, strict=True)
    return [clip_of(rollout, audio, record.sample_rate) for rollout, audio in pairs if audio is not None]


def all_inline(rewards: dict[str, Any]) -> RewardGraph:
    """The same graph with every node in the caller's thread."""
    rewards = copy.deepcopy(rewards)
    for options in filter(None, rewards["nodes"].values()):
        options.pop("run", None)
    graph = build_graph(rewards)
    graph.warm_up()
    return graph


def ask(name: str, node: Node, graph: RewardGraph, batch: Sequence[Sample]) -> None:
    """Give ``node`` those of ``batch`` that it is to be asked about."""
    inputs, asked = graph.inputs[name], []
    for sample in batch:
        if reason := sample.lacks(inputs.values()):
            sample.miss(name, node, reason)
        else:
            asked.append(sample)
    columns = {key: [sample.read(source) for sample in asked] for key, source in inputs.items()}
    rows = node.score([sample.clip for sample in asked], columns) if asked else ()
    for sample, row in zip(asked, rows, strict=True):
        sample.take(name, node, row, closes=name in graph.gates)


def one_by_one(graph: RewardGraph, clips: list[Clip]) -> Scores:
    """What a script without a graph does: each node in turn, for one clip after the other."""
    rows = []
    for clip in clips:
        sample = Sample(clip)
        for name, node in graph.nodes.items():
            ask(name, node, graph, [sample])
        rows.append(sample.score(graph.total, graph.gates, graph.output_names, graph.nodes))
    return Scores.of(rows, graph.output_names)


def own_share(graph: RewardGraph, clips: list[Clip]) -> float:
    """Time that an inline graph spends outside its nodes, over the time that it spends in them."""
    inside = 0.0

    def timed(score: Any) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal inside
            start = time.perf_counter()
            rows = score(*arguments)
            inside += time.perf_counter() - start
            return rows

        return call

    for node in graph.nodes.values():
        node.score = timed(node.score)  # type: ignore[method-assign]
    start = time.perf_counter()
    graph.score(clips)
    return (time.perf_counter() - start - inside) / inside


def main(argv: Sequence[str]) -> None:
    """Sample, time, compare."""
    parser = argparse.ArgumentParser(prog="bench.py rewards", description=__doc__)
    parser.add_argument(
        "overrides", nargs="*", metavar="KEY=VALUE", help="e.g. rewards.nodes.asr.run.workers=1"
    )
    parser.add_argument("--config", default="grpo_tiny")
    parser.add_argument("--clips", type=int, default=256)
    arguments = parser.parse_args(argv)
    config = load_config(arguments.config, arguments.overrides)
    clips = sampled_clips(config, arguments.clips)
    cores = len(os.sched_getaffinity(0))
    inline, graph = all_inline(asdict(config.rewards)), build_graph(asdict(config.rewards))
    graph.warm_up()
    for each in (inline, graph):
        each.score(clips[:SAMPLES])

    start, processor = time.perf_counter(), time.process_time()
    scores = graph.score(clips)
    seconds, processor = time.perf_counter() - start, time.process_time() - processor
    start = time.perf_counter()
    alone = one_by_one(inline, clips)
    seconds_alone = time.perf_counter() - start
    result = {
        "clips": len(clips),
        "cores": cores,
        "one_by_one_s": seconds_alone,
        "graph_s": seconds,
        "ratio": seconds_alone / seconds,
        "cpu_utilisation": processor / seconds / cores,
        "overhead": own_share(inline, clips),
        "largest_difference": float(np.nanmax(np.abs(scores.total - alone.total))),
    }
    print("{clips} clips: {one_by_one_s:.1f} s one by one, {graph_s:.1f} s as a graph".format_map(result))
    print("ratio {ratio:.2f}, {cpu_utilisation:.0%} of {cores} cores in use".format_map(result))
    print("overhead {overhead:.2%}, largest difference {largest_difference:.1e}".format_map(result))
    print(json.dumps(result))
