"""Is there room: GPU memory, the machine's memory, and disk, against estimates by component?"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from rl.arithmetic.disk import written
from rl.arithmetic.memory import WORDS, Component, Peak, Plan, Where, cache_holds, peak
from rl.doctor.check import Check, Verdict, gib
from rl.doctor.machine import Machine
from rl.schema import RunConfig

NEARLY = 0.9
"""Share of what is free above which an estimate is too near."""
_LEARNER = "lower trainer.micro_batch_tokens, or set model.gradient_checkpointing=true"
_REMEDIES = {
    "learner's activations": _LEARNER,
    "learner's logits": "lower trainer.micro_batch_tokens",
    "policy": "set model.dtype=bfloat16",
    "engine's weights": "set model.dtype=bfloat16",
    "engine's weights, asleep": "set model.dtype=bfloat16",
    "a step's audio": "lower trainer.prompts_per_step or rollouts.max_frames",
    "merged weights": "sample in workers elsewhere (rollouts.workers, rollouts.worker_gpus)",
    "merged weights, sent": "lower rollouts.workers, or add memory",
}
"""What to change first where a component is the largest of its peak."""


def memory(plan: Plan, parts: Sequence[Component], machine: Machine, assumed: str = "") -> list[Check]:
    """Peak by peak against what is free: the learner's GPU, a worker's where it has its own, and the host.

    ``assumed``: what the estimate rests on that isn't there.
    """
    run = plan.run
    checks = []
    if plan.gpu:
        mine = [part for part in parts if part.process == "learner"]
        share = int(1 / run.rollouts.worker_gpus + 1e-6) if 0 < run.rollouts.worker_gpus <= 1 else 1
        workers = [part for part in parts if part.process == "worker"] * min(share, run.rollouts.workers)
        if run.cluster.address is None and _shared(run):
            mine, workers = [*mine, *workers], []
        free = machine.gpus[0].free
        checks.append(_fits("GPU memory", peak(mine, "gpu"), mine, "gpu", free, plan, assumed))
        if workers:
            need = peak(workers, "gpu")
            words = f"needs {gib(need.size)} on each GPU with workers ({WORDS[need.phase]})"
            checks.append(Check("workers' GPU memory", f"{words}; theirs isn't seen from here"))
    local = [part for part in parts if part.process == "learner"]
    if run.cluster.address is None:
        local += [part for part in parts if part.process == "worker"] * run.rollouts.workers
        local += [part for part in parts if part.process == "follower"] * (run.cluster.learners - 1)
    need = peak(local, "host")
    checks.append(_fits("memory", need, local, "host", machine.memory, plan, assumed))
    return checks


def _shared(run: RunConfig) -> bool:
    """Whether Ray on one machine gives a worker the GPU of a learner: one that is alone has none reserved."""
    return run.cluster.learners == 1 or run.cluster.learner_gpus + run.rollouts.worker_gpus <= 1


def kv_cache(plan: Plan) -> list[Check]:
    """Whether vLLM's cache holds as many rollouts at once as it is given."""
    if plan.engine != "vllm":
        return []
    rollouts, holds = plan.run.rollouts, cache_holds(plan)
    at_once = min(rollouts.batch_size, plan.rollouts)
    if holds >= at_once:
        return [Check("KV cache", f"holds {at_once} rollouts of {plan.length} tokens")]
    enough = at_once / max(holds, 1) * rollouts.kv_cache_gib if holds else 0
    remedy = f"set rollouts.kv_cache_gib={_up(enough)}" if enough else "raise rollouts.kv_cache_gib"
    if not holds:
        words = f"{rollouts.kv_cache_gib:g} GiB don't hold one rollout of {plan.length} tokens"
        return [Check("KV cache", words, "cannot run", remedy)]
    words = f"{rollouts.kv_cache_gib:g} GiB hold {holds} of {at_once} rollouts of {plan.length} tokens"
    return [Check("KV cache", f"{words}: others wait", "warning", remedy)]


def disk(plan: Plan, tokenizer: int) -> Check:
    """What the whole run writes against what is free where ``output_dir`` is, or would be made."""
    folder = Path(plan.run.output_dir, plan.run.name)
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    try:
        free = shutil.disk_usage(there).free
    except OSError as error:
        return Check("disk", f"{there}: {error.strerror}", "cannot run", "name another output_dir")
    need = written(plan, tokenizer)
    words = (
        f"{gib(free)} free in {there}; the run writes {gib(need.typical)} (at most {gib(need.most)}): "
        f"rollouts {gib(need.typical_rollouts)}, checkpoints {gib(need.checkpoints)}"
    )
    remedy = "name another output_dir, or set fewer trainer.steps, or a larger trainer.save_every"
    verdict: Verdict = "cannot run" if need.typical > free else "warning" if need.most > free else "ok"
    return Check("disk", words, verdict, remedy if verdict != "ok" else "")


def _fits(
    name: str, need: Peak, parts: Sequence[Component], where: Where, free: int, plan: Plan, assumed: str
) -> Check:
    basis = f", {assumed}" if assumed else ""
    words = f"needs {gib(need.size)} ({WORDS[need.phase]}{basis}), {gib(free)} free"
    if need.size <= NEARLY * free:
        return Check(name, words)
    held = [part for part in parts if part.where == where and need.phase in part.phases]
    largest = max(held, key=lambda part: part.size)
    verdict: Verdict = "cannot run" if need.size > free else "warning"
    return Check(name, f"{words}; most: {largest.name}, {gib(largest.size)}", verdict, _remedy(largest, plan))


def _remedy(largest: Component, plan: Plan) -> str:
    if largest.name == "KV cache":
        key = "kv_cache_gib" if plan.engine == "vllm" else "batch_size"
        return f"lower rollouts.{key}"
    told = _REMEDIES.get(largest.name, "use a larger machine")
    if "bfloat16" in told and plan.run.model.dtype == "bfloat16":
        return "use a larger machine"
    if told is _LEARNER and plan.run.model.gradient_checkpointing:
        return "lower trainer.micro_batch_tokens"
    return told


def _up(size: float) -> str:
    """The next half GiB."""
    return f"{-(-size * 2 // 1) / 2:g}"
