"""Rollouts become one record, whatever the order in which they come."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rewards.graph import build_graph
from rl.codec.loading import load_codec
from rl.scoring import DECODED_AT_ONCE, score_rollouts
from rollouts.store import StepRecord
from rollouts.types import Prompt, Rollout

PROMPTS = [Prompt(name, f"Say {name}.", f"Say {name}.") for name in ("b", "a", "c")]


def rollout(prompt: Prompt, index: int) -> Rollout:
    random = np.random.default_rng([PROMPTS.index(prompt), index])
    codes = random.integers(0, 16, (1 + index, 4))
    return Rollout(prompt, index, 0, codes, np.zeros((1 + index, 4), np.float32), None, "length", 1)


def record(rollouts: Iterator[Rollout]) -> StepRecord:
    nodes = {"length": {"type": "duration", "run": {"batch_size": 4}}}
    graph = build_graph({"nodes": nodes, "total": "length"})
    return score_rollouts(
        rollouts, PROMPTS, load_codec("tiny"), graph, step=3, split="train", config_hash="0"
    )


def test_rollouts_may_come_in_any_order() -> None:
    whole = [rollout(prompt, index) for prompt in PROMPTS for index in range(7)]
    assert len(whole) > DECODED_AT_ONCE
    expected = record(iter(whole))
    assert expected.group_ids.tolist() == [0] * 7 + [1] * 7 + [2] * 7
    assert [(r.prompt.id, r.sample_index) for r in expected.rollouts[6:9]] == [("b", 6), ("a", 0), ("a", 1)]
    assert len(set(expected.total)) > 1
    mixed = record(whole[i] for i in np.random.default_rng(1).permutation(len(whole)))
    assert mixed.rollouts == expected.rollouts
    np.testing.assert_array_equal(mixed.total, expected.total)
    np.testing.assert_array_equal(mixed.group_ids, expected.group_ids)
    assert mixed.details == expected.details
    assert expected.submitted.tolist() == list(range(len(whole)))
    seen = [(r.prompt.id, r.sample_index) for r in (mixed.rollouts[i] for i in np.argsort(mixed.submitted))]
    order = np.random.default_rng(1).permutation(len(whole))
    assert seen == [(whole[i].prompt.id, whole[i].sample_index) for i in order]
    for left, right in zip(mixed.audio, expected.audio, strict=True):
        np.testing.assert_array_equal(left, right)
