"""Time a training step of a configuration three ways, in the same run and on the same rollouts.

- sequential: samples all, decodes all, asks one reward node after the other about all clips, learns.
- pipelined: clips are decoded and scored while others are sampled, then the learner learns.
- one step ahead: the same, while the learner learns from the step before (trainer.steps_ahead=1).

Then all of it once more with a judge that takes --judge-seconds for each clip: a server on this machine that
waits. The sequential step asks it about one clip after the other, as the others do about all at once.

A step is the whole of it, with weight sync and rollout file. Of each way the first step warms up and, where
steps overlap, the last one doesn't count: it has none after it. The learning rate is next to nothing, so that
all sample the same. Idle is what this process and its children leave of the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from rewards.graph import RewardGraph, build_graph
from rewards.run.sample import Sample
from rewards.types import Clip, Scores
from rl.config import config_hash, load_config
from rl.parts import Parts, build_parts, load_for_run
from rl.prompts_file import load_prompts
from rl.schema import RunConfig
from rl.scoring import clip_of, record_of
from rl.seeds import derive_seed, step_prompts
from rl.trainer.adapter import add_adapter, merged_weights
from rl.trainer.collect import Collector
from rl.trainer.grpo import DualARTrainer
from rollouts.store import StepRecord, quantise, write_step
from rollouts.types import SamplingParams
from scripts.benchmarks.machine import describe
from scripts.benchmarks.rewards import all_inline, ask

JUDGE = {"type": "caption_endpoint", "model": "waits", "cache": None, "monitor": True}
"""Asks once for each clip. A monitor: what it says has no part in the total."""
AT_ONCE = {"concurrency": 64, "run": {"where": "thread", "workers": 4, "batch_size": 16}}
ONE_BY_ONE = {"concurrency": 1}


@dataclass
class Watch:
    """The end of each step, the processor time until then, and the seconds of each phase by its name."""

    ends: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)

    def end_step(self) -> None:
        self.ends.append(time.perf_counter())
        self.processor.append(processor_seconds())

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.phases.setdefault(name, []).append(time.perf_counter() - start)

    def result(self, overlapping: bool) -> dict[str, Any]:
        """Medians over the steps that count: a step's seconds, phases' seconds, share of the cores idle."""
        last = len(self.ends) - overlapping
        steps = [self.ends[i] - self.ends[i - 1] for i in range(1, last)]
        busy = [self.processor[i] - self.processor[i - 1] for i in range(1, last)]
        cores = len(os.sched_getaffinity(0))
        return {
            "step_s": statistics.median(steps),
            "idle_share": statistics.median(1 - b / s / cores for b, s in zip(busy, steps, strict=True)),
            "phases_s": {name: statistics.median(seconds[1:last]) for name, seconds in self.phases.items()},
        }


def processor_seconds() -> float:
    """Processor time of this process and of all that it has started and that still run."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


class Sequential:
    """Collects a step's rollouts phase by phase. ``graph`` has all nodes in the caller's thread."""

    def __init__(self, parts: Parts, graph: RewardGraph, model: Any, config: RunConfig, watch: Watch) -> None:
        self.parts, self.graph, self.model, self.config, self.watch = parts, graph, model, config, watch
        self.prompts = load_prompts(config.prompts.train)

    def __call__(self, step: int) -> StepRecord:
        config, engine, codec = self.config, self.parts.engine, self.parts.codec
        chosen = step_prompts(config.seed, step, len(self.prompts), config.trainer.prompts_per_step)
        prompts = self.parts.voices.encoded([self.prompts[index] for index in chosen])
        sampling = SamplingParams(config.rollouts.temperature, config.rollouts.max_frames)
        with self.watch.phase("weight sync"):
            engine.load_weights(merged_weights(self.model))
        with self.watch.phase("sampling"):
            seed = derive_seed(config.seed, "rollouts", step)
            rollouts = engine.generate(prompts, config.rollouts.group_size, sampling, seed)
        with self.watch.phase("decoding"):
            waves = [quantise(wave) for wave in codec.decode_batch([rollout.codes for rollout in rollouts])]
        pairs = list(zip(rollouts, waves, strict=True))
        scores = self._scores([clip_of(*pair, codec.sample_rate) for pair in pairs])
        return record_of(
            pairs,
            scores,
            prompts,
            codec.sample_rate,
            step=step,
            split="train",
            config_hash=config_hash(config),
        )

    def _scores(self, clips: Sequence[Clip]) -> Scores:
        graph, samples = self.graph, [Sample(clip) for clip in clips]
        for name, node in graph.nodes.items():
            with self.watch.phase(f"reward {name}"):
                for start in range(0, len(samples), graph.pools[name].options.batch_size):
                    batch = samples[start : start + graph.pools[name].options.batch_size]
                    ask(name, node, graph, batch)
        rows = [sample.score(graph.total, graph.gates, graph.output_names, graph.nodes) for sample in samples]
        return Scores.of(rows, graph.output_names)


def run(config: RunConfig, parts: Parts, inline: RewardGraph | None) -> dict[str, Any]:
    """All steps of ``config``; one phase after the other where there is an ``inline`` graph."""
    model = add_adapter(load_for_run(config.model)[0], config.lora, seed=0)
    parts.engine.version = 0
    watch = Watch()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        collect: Sequential | Collector
        if inline is not None:
            collect = Sequential(parts, inline, model, config, watch)
        else:
            collector = Collector(parts, model, load_prompts(config.prompts.train), config)
            collect = stack.enter_context(collector)

        def timed(step: int) -> StepRecord:
            with watch.phase("collecting"):
                return collect(step)

        def keep(record: StepRecord) -> None:
            with watch.phase("rollout file"):
                write_step(folder / f"{record.step}.parquet", record)

        trainer = DualARTrainer(
            model, parts.tokenizer, config, folder, timed, keep, lambda step, metrics: watch.end_step()
        )
        trainer.train()
    result = watch.result(overlapping=config.trainer.steps_ahead > 0)
    phases = result["phases_s"]
    phases["learner"] = result["step_s"] - phases["rollout file"] - phases["collecting"]
    if inline is not None:
        del phases["collecting"]  # it is the sum of others
    return result


@contextmanager
def waiting_judge(seconds: float) -> Iterator[str]:
    """The address of a chat server on this machine that answers after so many seconds."""
    message = {"role": "assistant", "content": "a voice"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    body = json.dumps({"object": "chat.completion", "model": "waits", "choices": [choice]}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            time.sleep(seconds)
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()


def three_ways(config: RunConfig, parts: Parts, judge: dict[str, Any], repeats: int) -> dict[str, Any]:
    """A step of each way. ``judge``: options of one more node, if any; the sequential way runs it once."""
    sequential, beside = asdict(config.rewards), asdict(config.rewards)
    if judge:
        sequential["nodes"]["judge"] = judge | ONE_BY_ONE
        beside["nodes"]["judge"] = judge | AT_ONCE
    inline, graph = all_inline(sequential), build_graph(beside)
    graph.warm_up()
    parts = replace(parts, graph=graph)

    def of(steps: int, ahead: int = 0) -> RunConfig:
        steps_of = {"steps": steps, "save_every": steps, "steps_ahead": ahead, "importance_cap": 2.0}
        return replace(config, trainer=replace(config.trainer, **steps_of))

    results = {
        "sequential": run(of(2 if judge else 1 + repeats), parts, inline),
        "pipelined": run(of(1 + repeats), parts, None),
        "one step ahead": run(of(2 + repeats, ahead=1), parts, None),
    }
    graph.close()
    phases = sum(results["sequential"]["phases_s"].values())
    for result in results.values():
        result["phases_over_step"] = phases / result["step_s"]
    return results


def show(results: dict[str, Any], title: str) -> None:
    """The sequential way's phases, and a line for each way."""
    print(title)
    for name, seconds in results["sequential"]["phases_s"].items():
        print(f"  {name:22}{seconds:8.2f} s")
    for name, result in results.items():
        print(
            f"{name:16}{result['step_s']:8.2f} s a step, {result['phases_s']['learner']:.2f} s learning, "
            f"{result['idle_share']:4.0%} of the cores idle, sum of phases / step "
            f"{result['phases_over_step']:.2f}",
            flush=True,
        )


def main(argv: Sequence[str]) -> None:
    """Time all ways, without a judge and with one."""
    parser = argparse.ArgumentParser(
        prog="bench.py step", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    parser.add_argument("--config", default="grpo_tiny")
    parser.add_argument("--prompts", type=int, default=4, help="of a step")
    parser.add_argument("--repeats", type=int, default=5, help="steps of each way; the median counts")
    parser.add_argument("--judge-seconds", type=float, default=2.0, help="for one clip; 0: no judge")
    arguments = parser.parse_args(argv)
    fixed = [f"trainer.prompts_per_step={arguments.prompts}", "trainer.learning_rate=1e-12"]
    config = load_config(arguments.config, [*fixed, *arguments.overrides])
    config.evaluation.monitors = {}
    parts = build_parts(config)
    machine = describe()
    print("{processor}, {cores} cores, {threads} threads, torch {torch}".format_map(machine))
    result = {"machine": machine, "clips": arguments.prompts * config.rollouts.group_size}
    result["plain"] = three_ways(config, parts, {}, arguments.repeats)
    show(result["plain"], f"{result['clips']} clips a step")
    if arguments.judge_seconds:
        os.environ["NO_PROXY"] = "127.0.0.1"
        with waiting_judge(arguments.judge_seconds) as address:
            judge = JUDGE | {"base_url": address}
            result["judge"] = three_ways(config, parts, judge, arguments.repeats)
        show(result["judge"], f"with a judge that takes {arguments.judge_seconds:g} s for a clip")
    parts.engine.close()
    print(json.dumps(result))
