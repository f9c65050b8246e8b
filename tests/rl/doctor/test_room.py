"""Memory and disk: enough, nearly, and not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rl.arithmetic.disk import written
from rl.arithmetic.memory import Component, Plan, components, peak, s2_codec_shape
from rl.arithmetic.shapes import published_s2
from rl.codec.s2_config import S2CodecConfig
from rl.config import load_config
from rl.doctor.machine import Gpu, Machine, gpus, this_machine
from rl.doctor.plan import PROMPT_TOKENS, plan_of
from rl.doctor.room import disk, kv_cache, memory
from rl.errors import PromptError
from rl.prompts_file import load_prompts

CODEC = s2_codec_shape(S2CodecConfig(), 391_430_530)


def plan(*overrides: str, gpu: bool = True, engine: str = "vllm") -> Plan:
    return Plan(load_config("grpo_s2", overrides), published_s2(), CODEC, 128, engine, gpu)


def machine(gpu: float | None, host: float) -> Machine:
    """One GPU (or none) and a host with so many bytes free."""
    return Machine((Gpu("H100", int(gpu), int(gpu)),) if gpu else (), int(host), 16)


def test_this_machine_is_seen_as_it_is() -> None:
    found = this_machine()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < found.memory <= total
    assert found.cores >= 1
    assert gpus(found).verdict == "ok"


def test_gpus_are_named_with_what_is_free() -> None:
    assert gpus(machine(80 * 2**30, 1)).found == "H100 (80.0 GiB of 80.0 GiB free)"


@pytest.mark.parametrize(("share", "verdict"), [(1.2, "ok"), (1.05, "warning"), (0.99, "cannot run")])
@pytest.mark.parametrize("where", ["gpu", "host"])
def test_the_estimate_against_what_is_free(share: float, verdict: str, where: str) -> None:
    it = plan()
    parts = components(it)
    free = {name: 2 * peak(parts, name).size for name in ("gpu", "host")}
    free[where] = int(share * free[where] / 2)
    found = {check.name: check for check in memory(it, parts, machine(free["gpu"], free["host"]))}
    assert found["GPU memory" if where == "gpu" else "memory"].verdict == verdict
    assert found["memory" if where == "gpu" else "GPU memory"].verdict == "ok"


def test_the_largest_component_has_the_remedy() -> None:
    small = machine(2**30, 2**50)
    big = plan("trainer.micro_batch_tokens=65536")
    assert memory(big, components(big), small)[0].remedy == "lower trainer.micro_batch_tokens"
    whole = plan("trainer.micro_batch_tokens=65536", "model.gradient_checkpointing=false")
    assert memory(whole, components(whole), small)[0].remedy.endswith("gradient_checkpointing=true")
    cached = plan("rollouts.kv_cache_gib=70")
    assert memory(cached, components(cached), small)[0].remedy == "lower rollouts.kv_cache_gib"
    wide = plan("model.dtype=float32", "trainer.micro_batch_tokens=1")
    assert memory(wide, components(wide), small)[0].remedy == "set model.dtype=bfloat16"


def test_workers_share_the_learners_gpu_on_one_machine_and_not_on_a_cluster() -> None:
    here = plan("rollouts.workers=2", "rollouts.worker_gpus=0.5")
    parts = components(here)
    both = peak([*parts, *[part for part in parts if part.process == "worker"]], "gpu").size
    (own, _) = memory(here, parts, machine(2**50, 2**50))
    assert f"needs {both / 2**30:.1f} GiB" in own.found
    there = plan("rollouts.workers=2", "rollouts.worker_gpus=0.5", "cluster.address=10.0.0.1:6379")
    alone, theirs, _ = memory(there, parts, machine(2**50, 2**50))
    assert f"needs {peak(parts, 'gpu', 'learner').size / 2**30:.1f} GiB" in alone.found
    worker = [part for part in parts if part.process == "worker"]
    assert f"needs {peak([*worker, *worker], 'gpu').size / 2**30:.1f} GiB" in theirs.found


def test_learners_with_gpus_of_their_own_keep_workers_off() -> None:
    keys = ("cluster.learners=3", "cluster.learner_gpus=1", "rollouts.workers=1", "rollouts.worker_gpus=1")
    it = plan(*keys)
    parts = components(it)
    own, _, host = memory(it, parts, machine(2**50, 2**50))
    assert f"needs {peak(parts, 'gpu', 'learner').size / 2**30:.1f} GiB" in own.found
    others = [part for part in parts if part.process == "follower"]
    assert f"needs {peak([*parts, *others], 'host').size / 2**30:.1f} GiB" in host.found, "three learners"


def test_what_rewards_hold_counts() -> None:
    it = plan()
    model = Component("reward judge: large", 2**45, "gpu")
    (check, _) = memory(it, [*components(it), model], machine(80 * 2**30, 2**50))
    assert check.verdict == "cannot run"
    assert "most: reward judge: large" in check.found


def test_a_cache_that_holds_fewer_rollouts_than_are_sampled() -> None:
    (check,) = kv_cache(plan("rollouts.kv_cache_gib=1"))
    assert check.verdict == "warning"
    assert check.found == "1 GiB hold 11 of 128 rollouts of 640 tokens: others wait"
    (key, _, value) = check.remedy.removeprefix("set ").partition("=")
    (enough,) = kv_cache(plan(f"{key}={value}"))
    assert (enough.verdict, enough.found) == ("ok", "holds 128 rollouts of 640 tokens")
    (none,) = kv_cache(plan("rollouts.kv_cache_gib=0.05"))
    assert none.verdict == "cannot run"
    assert kv_cache(plan(engine="torch")) == []


def test_disk(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    at = [f"output_dir={tmp_path}/not/there/yet", "evaluation.enabled=false", "trainer.save_every=1000000000"]
    one = written(plan(*at, "trainer.steps=1"))
    check = disk(plan(*at, "trainer.steps=1"), 0)
    assert f"free in {tmp_path};" in check.found, "the nearest folder that exists"
    assert check.verdict == ("ok" if one.most <= free else "warning")
    between = 2 * free // (one.rollouts + one.typical_rollouts)
    assert disk(plan(*at, f"trainer.steps={between}"), 0).verdict == "warning"
    full = disk(plan(*at, f"trainer.steps={2 * free // one.typical_rollouts}"), 0)
    assert full.verdict == "cannot run"
    assert "output_dir" in full.remedy
    assert disk(plan(*at, "trainer.steps=1"), 2 * free).verdict == "cannot run", (
        "a checkpoint alone is too large"
    )


def test_the_plan_of_a_policy_that_is_not_there(configure) -> None:
    run = configure("model.prompt_format=fish_s2")
    found, assumed = plan_of(run, None, None, [], gpu=False)
    assert found is not None
    assert (found.policy.text_config.n_layer, found.prompt) == (36, PROMPT_TOKENS)
    assert assumed == "were it the published S2"
    assert plan_of(configure("model.prompt_format=step_audio_3"), None, None, [], gpu=False) == (None, "")


def test_prompts_said_turn_by_turn_make_longer_rollouts(configure, tmp_path: Path) -> None:
    run = configure("model.prompt_format=fish_s2", "rollouts.turns_at_once=1")
    (tmp_path / "turns.jsonl").write_text(
        '{"text": "<|speaker:0|>One.<|speaker:1|>Two.<|speaker:0|>Three."}\n'
    )
    found, _ = plan_of(run, None, None, load_prompts(str(tmp_path / "turns.jsonl")), gpu=False)
    assert found is not None
    assert (found.parts, found.frames) == (3, 18)
    (tmp_path / "wrong.jsonl").write_text('{"text": "Before.<|speaker:0|>One."}\n')
    with pytest.raises(PromptError, match="stands before the first speaker tag"):
        plan_of(run, None, None, load_prompts(str(tmp_path / "wrong.jsonl")), gpu=False)
