"""Saved clips score as they did in the run, to the bit, and nothing is computed twice."""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from rewards.audit.clips import ClipSet
from rewards.audit.data_in import read_clips
from rewards.audit.rescore import differences, node_keys, rescore
from rewards.endpoints.cache import ResponseCache
from rewards.graph import build_graph
from rewards.types import Clip
from rl.codec.loading import load_codec
from rl.config import load_config, save_resolved
from rl.scoring import score_rollouts
from rollouts.store import step_path, write_step
from rollouts.types import Prompt, Rollout
from tests.rewards.audit.cases import recipe

REAL: dict[str, Any] = {
    "nodes": {
        "sanity": {"type": "sanity"},
        "voice": {"type": "voiceprint", "run": {"where": "thread", "num_cpus": 1, "batch_size": 8}},
        "quality": {"type": "dnsmos", "run": {"where": "thread", "num_cpus": 1, "batch_size": 8}},
        "length": {"type": "duration"},
    },
    "total": "0.5*voice + 0.5*quality*length",
}


@pytest.fixture(scope="module")
def run_dir(speech: list[Clip], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of a run: 4 prompts x 3 samples, two voices, submitted in another order than stored."""
    folder = tmp_path_factory.mktemp("run")
    codec = load_codec("tiny")
    for number in (0, 1):
        soundfile.write(folder / f"voice_{number}.wav", speech[number].audio, speech[number].sample_rate)
    config = load_config(
        "grpo_tiny",
        [
            "rewards.recipe=null",
            f"rewards.nodes={json.dumps(REAL['nodes'])}",
            f"rewards.total={REAL['total']}",
        ],
    )
    save_resolved(config, folder / "config.yaml")
    graph = build_graph(asdict(config.rewards))
    for step in (1, 2):
        random = np.random.default_rng(step)
        prompts, rollouts = [], []
        for p, clip in enumerate(speech[:4]):
            meta = {"reference_audio": str(folder / f"voice_{(p + step) % 2}.wav")}
            prompts.append(Prompt(f"p{p}", clip.text, clip.spoken, (), meta))
            codes = codec.encode(clip.audio, clip.sample_rate)
            for sample in range(3):
                taken = codes[: len(codes) - int(random.integers(0, 9))]
                if (p, sample) == (3, 2):
                    taken = codes[:0]
                logprobs = np.zeros(taken.shape, np.float32)
                rollouts.append(Rollout(prompts[-1], sample, 0, taken, logprobs, -1.0, "eos", step))
        order = random.permutation(len(rollouts))
        record = score_rollouts(
            (rollouts[i] for i in order), prompts, codec, graph, step=step, split="train", config_hash="0"
        )
        write_step(step_path(folder, step), record)
    graph.close()
    return folder


def test_a_run_is_reproduced_to_the_bit_in_any_order_of_its_steps(run_dir: Path) -> None:
    data = read_clips(run_dir)
    assert data.stored is not None
    assert data.rewards is not None
    assert not np.array_equal(data.batches[0], np.arange(12))
    graph = build_graph(data.rewards)
    backwards = replace(data, batches=data.batches[::-1])
    fresh = rescore(backwards, graph)
    graph.close()
    assert [one for one in differences(data.stored, fresh) if one.differ] == []
    assert fresh.reasons == data.stored.reasons
    assert fresh.details == data.stored.details
    np.testing.assert_array_equal(fresh.gated, data.stored.gated)
    assert fresh.gated.sum() == 2


def test_what_the_run_knows_is_taken_from_it(run_dir: Path) -> None:
    """The models aren't even loaded: their nodes are answered from the run, under other names, too."""
    data = read_clips(run_dir)
    assert data.rewards is not None
    nodes = {**data.rewards["nodes"], "timbre": data.rewards["nodes"]["voice"], "voice": None}
    nodes["length"] = {"type": "duration", "slack": 1.0}
    graph = build_graph({"nodes": nodes, "total": "timbre*length"})

    def refuse() -> None:
        raise AssertionError("loaded")

    for name in ("timbre", "quality"):
        graph.nodes[name].load = refuse  # type: ignore[method-assign]
    run_graph = build_graph(data.rewards)
    scores = rescore(data, graph, run_graph=run_graph)
    assert data.stored is not None
    np.testing.assert_array_equal(scores.values["timbre"], data.stored.values["voice"])
    changed = ~np.isnan(scores.values["length"])
    assert (scores.values["length"] <= data.stored.values["length"])[changed].all()
    assert (scores.values["length"] < data.stored.values["length"])[changed].any()
    np.testing.assert_array_equal(scores.total[scores.gated], 0)


def test_an_interrupted_scoring_goes_on_where_it_was(takes: ClipSet, tmp_path: Path) -> None:
    planted = importlib.import_module("planted")
    cache = ResponseCache(tmp_path)
    data = replace(takes, batches=[np.arange(0, 16), np.arange(16, 32), np.arange(32, 40)])
    seen: list[int] = []

    def stop(clips: int) -> None:
        seen.append(clips)
        if len(seen) > 20:
            raise KeyboardInterrupt

    rewards = recipe("good", good="honest")
    planted.CALLS.clear()
    with pytest.raises(KeyboardInterrupt):
        rescore(data, build_graph(rewards), cache, progress=stop)
    assert len(planted.CALLS) == 32  # the second batch was computed, but not finished
    planted.CALLS.clear()
    scores = rescore(data, build_graph(rewards), cache)
    assert len(planted.CALLS) == 24
    planted.CALLS.clear()
    again = rescore(data, build_graph({**rewards, "total": "2*good"}), cache)
    assert planted.CALLS == []
    np.testing.assert_array_equal(again.total, 2 * scores.total)
    assert not list(tmp_path.rglob("*.draft"))


def test_what_decides_an_answer_is_in_its_key(takes: ClipSet) -> None:
    def keys(**changes: Any) -> dict[str, str]:
        nodes = {**REAL["nodes"], **changes}
        return node_keys(build_graph({"nodes": nodes, "total": "length"}))

    own = keys()
    assert keys(length={"type": "duration", "slack": 1.5}) == own  # the default, said aloud
    assert keys(quality={"type": "dnsmos", "level": -20})["quality"] != own["quality"]
    behind_another_gate = keys(sanity={"type": "sanity", "min_level": -40})
    assert not set(behind_another_gate.values()) & set(own.values())
