"""The tables of docs/scaling.md: what `grpo_s2` takes on one GPU, on eight, and on a cluster.

``scripts/scaling.py`` writes them into the page.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from rl.arithmetic.memory import PHASES, WORDS, Component, Phase, Plan, components, peak, s2_codec_shape
from rl.arithmetic.shapes import published_s2
from rl.arithmetic.speed import (
    H100,
    H200,
    Machine,
    Scale,
    StepTime,
    codec_flops,
    fast_flops,
    frame_time,
    gradient_bytes,
    kernels,
    learner_flops,
    learner_passes,
    passes,
    slow_flops,
    step_time,
    traffic,
)
from rl.codec.s2_config import S2CodecConfig
from rl.config import load_config

PROMPT, FRAMES = 128, 256
"""Tokens of a prompt, and frames of a rollout: 12 s."""
CODEC_PARAMETERS = 391_430_530
OVRL, P808 = 2 * 0.43 + 6 * 0.02, 2 * 0.03 + 6 * 0.02
"""CPU-seconds to score 12 s by DNSMOS (two windows) in either scale, and a voiceprint: docs/rewards.md's."""
TF32 = 494e12
"""Operations a second of an H100 or H200 in TF32, dense; the maker's figure."""


@dataclass(frozen=True)
class Layout:
    """A machine or a cluster, how its GPUs are shared out, the keys that say so, and what a clip's score
    costs."""

    name: str
    gpu: Machine
    scale: Scale
    overrides: tuple[str, ...]
    clip_cost: float = OVRL


LAYOUTS = (
    Layout("1 x H200", H200, Scale(), ()),
    Layout(
        "8 x H100",
        H100,
        Scale(reward_cores=64),
        (
            "cluster.learners=4",
            "cluster.learner_gpus=1",
            "rollouts.workers=4",
            "rollouts.worker_gpus=1",
        ),
    ),
    Layout(
        "32 x H100",
        H100,
        Scale(machines=4, reward_cores=64),
        (
            "cluster.learners=16",
            "cluster.learner_gpus=1",
            "rollouts.workers=16",
            "rollouts.worker_gpus=1",
            "trainer.prompts_per_step=64",
        ),
    ),
)


def _on_gpu(layout: Layout, **figures: Any) -> Layout:
    return replace(layout, gpu=replace(layout.gpu, **figures))


def _with_key(layout: Layout, key: str) -> Layout:
    return replace(layout, overrides=(*layout.overrides, key))


def _beside(layout: Layout) -> Layout:
    """Rewards in threads, or in actors on all machines."""
    cores = layout.scale.reward_cores * layout.scale.machines
    return replace(layout, scale=replace(layout.scale, beside=True, reward_cores=cores))


CHANGES: dict[str, Callable[[Layout], Layout]] = {
    "decode in TF32": lambda one: _on_gpu(one, flops32=TF32),
    "rewards beside the sampling": _beside,
    "DNSMOS's `p808` for `ovrl`": lambda one: replace(one, clip_cost=P808),
    "the fast AR in a captured graph": lambda one: _on_gpu(one, launch=0.0),
    "`model.gradient_checkpointing=false`": lambda one: _with_key(one, "model.gradient_checkpointing=false"),
    "`trainer.beta=0`": lambda one: _with_key(one, "trainer.beta=0"),
}
"""What to change first."""


def plan_for(layout: Layout) -> Plan:
    """`grpo_s2` on ``layout``, with the published S2's shape and vLLM."""
    run = load_config("grpo_s2", layout.overrides)
    codec = s2_codec_shape(S2CodecConfig(), CODEC_PARAMETERS)
    return Plan(run, published_s2(), codec, PROMPT, "vllm", gpu=True)


def time_of(layout: Layout) -> StepTime:
    """A step of ``layout``."""
    return step_time(
        plan_for(layout),
        layout.gpu,
        layout.scale,
        frames=FRAMES,
        decode_flops=_codec_flops(),
        reward_seconds=layout.clip_cost,
    )


def memory_table() -> str:
    """GiB on a GPU by component: of one GPU that does all, of a learner's, and of a worker's."""
    alone, apart = (components(plan_for(layout)) for layout in LAYOUTS[:2])
    columns = {
        "all on one": [part for part in alone if part.where == "gpu"],
        "first learner": [part for part in apart if part.where == "gpu" and part.process == "learner"],
        "other learner": [part for part in apart if part.where == "gpu" and part.process == "follower"],
        "worker": [part for part in apart if part.where == "gpu" and part.process == "worker"],
    }
    named = {part.name: part for parts in columns.values() for part in parts}
    rows = [
        [name, _while(part.phases), *(_gib(_size(parts, name)) for parts in columns.values())]
        for name, part in named.items()
    ]
    for phase, words in WORDS.items():
        sums = [sum(part.size for part in parts if phase in part.phases) for parts in columns.values()]
        rows.append([f"sum, {words}", "", *map(_gib, sums)])
    rows.append(["**peak**", "", *(f"**{_gib(peak(parts, 'gpu').size)}**" for parts in columns.values())])
    return _table(["GiB on a GPU", "while", *columns], rows)


def frame_table() -> str:
    """What one frame of 128 samples moves and takes, on either GPU."""
    run = plan_for(LAYOUTS[0]).run
    s2, dtype, samples = published_s2(), run.model.dtype, run.rollouts.batch_size
    moved = traffic(s2, dtype, samples, PROMPT + FRAMES // 2)
    times = [frame_time(s2, dtype, samples, PROMPT + FRAMES // 2, layout.gpu) for layout in LAYOUTS[:2]]
    rows = [
        ["slow AR's weights, once", _gb(moved.slow), ""],
        [f"fast AR's weights, {passes(s2)} passes", _gb(moved.fast), *(_ms(t.fast_memory) for t in times)],
        [f"keys and values of {samples} samples", _gb(moved.cache), ""],
        ["slow AR and cache", _gb(moved.slow + moved.cache), *(_ms(t.slow) for t in times)],
        [f"fast AR's {kernels(s2):,} kernel launches", "", *(_ms(t.fast_launches) for t in times)],
        ["**one frame of all samples**", _gb(moved.total), *(f"**{_ms(t.total)}**" for t in times)],
        ["for each sample", _gb(moved.total / samples), ""],
        ["frames a second", "", *(f"{samples / t.total:,.0f}" for t in times)],
        ["bound", "", *(t.bound for t in times)],
    ]
    return _table(["one frame", "GB moved", *(layout.gpu.name for layout in LAYOUTS[:2])], _padded(rows, 4))


def flops_table() -> str:
    """What a step of 256 rollouts computes."""
    plan = plan_for(LAYOUTS[0])
    s2, rollouts, length = plan.policy, plan.rollouts, PROMPT + FRAMES
    rows = [
        ["slow AR, one token forward", f"{slow_flops(s2, 1, length) / 1e9:.2f} GFLOP"],
        ["fast AR, one frame forward", f"{fast_flops(s2, 1) / 1e9:.2f} GFLOP"],
        ["codec, one frame decoded, float32", f"{_codec_flops() / 1e9:.2f} GFLOP"],
        [f"{rollouts} rollouts, forward", _tflop(learner_flops(plan, FRAMES) / learner_passes(plan))],
        [f"learning: {learner_passes(plan)} such passes", _tflop(learner_flops(plan, FRAMES))],
        [f"{rollouts} rollouts, decoded", _tflop(rollouts * FRAMES * _codec_flops())],
        ["learners' gradients, added up", f"{gradient_bytes(plan) / 1e6:.0f} MB"],
    ]
    return _table(["", "a step"], rows)


def step_table() -> str:
    """Seconds of a step's parts, by layout."""
    times = [time_of(layout) for layout in LAYOUTS]
    plans = [plan_for(layout) for layout in LAYOUTS]
    rows = [
        ["learners + workers", *(_shared(layout) for layout in LAYOUTS)],
        ["rollouts a step", *(f"{plan.rollouts}" for plan in plans)],
        ["weight sync", *(_s(time.sync) for time in times)],
        ["sampling", *(_s(time.sample) for time in times)],
        ["decoding", *(_s(time.decode) for time in times)],
        ["rewards", *(_s(time.rewards) for time in times)],
        ["learning", *(_s(time.learn) for time in times)],
        ["**step**", *(f"**{_s(time.total)}**" for time in times)],
        ["longest part", *(time.bound for time in times)],
        ["rollouts a second", *(f"{p.rollouts / t.total:.1f}" for p, t in zip(plans, times, strict=True))],
    ]
    return _table(["", *(layout.name for layout in LAYOUTS)], rows)


def changes_table() -> str:
    """A step's seconds after each change, those above it included."""
    rows = [["as it is", *(_s(time_of(layout).total) for layout in LAYOUTS)]]
    layouts = list(LAYOUTS)
    for number, (words, change) in enumerate(CHANGES.items(), 1):
        layouts = [change(layout) for layout in layouts]
        rows.append([f"{number}. {words}", *(_s(time_of(layout).total) for layout in layouts)])
    rows.append(["longest part then", *(time_of(layout).bound for layout in layouts)])
    return _table(["a step", *(layout.name for layout in LAYOUTS)], rows)


def uncheckpointed_table() -> str:
    """The learner's activations with and without gradient checkpointing."""
    rows = []
    for words, key in (("with", "true"), ("without", "false")):
        parts = components(plan_for(_with_key(LAYOUTS[0], f"model.gradient_checkpointing={key}")))
        size = _size(parts, "learner's activations")
        rows.append([f"{words} gradient checkpointing", _gib(size), _gib(peak(parts, "gpu").size)])
    return _table(["GiB", "learner's activations", "peak, all on one"], rows)


TABLES = {
    "memory": memory_table,
    "frame": frame_table,
    "flops": flops_table,
    "step": step_table,
    "changes": changes_table,
    "checkpointing": uncheckpointed_table,
}


def fill(page: str) -> str:
    """``page`` with each table behind a line ``<!-- name -->`` made anew."""

    def table(found: re.Match[str]) -> str:
        return f"<!-- {found[1]} -->\n{TABLES[found[1]]()}\n"

    return re.sub(rf"<!-- ({'|'.join(TABLES)}) -->\n(?:\|.*\n)*", table, page)


@cache
def _codec_flops() -> int:
    return codec_flops(S2CodecConfig())


def _shared(layout: Layout) -> str:
    run = plan_for(layout).run
    workers = run.rollouts.workers
    return f"{run.cluster.learners} + {workers}" if workers else "1, which samples too"


def _size(parts: Sequence[Component], name: str) -> int:
    return sum(part.size for part in parts if part.name == name)


def _while(phases: Sequence[Phase]) -> str:
    return "" if len(phases) == len(PHASES) else ", ".join(WORDS[phase] for phase in phases)


def _gib(size: float) -> str:
    return f"{size / 2**30:.1f}" if size else ""


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.1f} ms"


def _s(seconds: float) -> str:
    return f"{seconds:.1f} s"


def _tflop(operations: float) -> str:
    return f"{operations / 1e12:,.0f} TFLOP"


def _padded(rows: Sequence[Sequence[str]], columns: int) -> list[list[str]]:
    return [[*row, *[""] * (columns - len(row))] for row in rows]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
