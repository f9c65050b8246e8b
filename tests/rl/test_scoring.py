"""Rollouts become one record, whatever the order in which they come."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest

from rewards.graph import build_graph
from rl.codec.base import Codec
from rl.codec.loading import load_codec
from rl.codec.tiny import TinyCodec
from rl.errors import CheckpointError
from rl.policy.loading import EMBEDDED
from rl.scoring import DECODED_AT_ONCE, score_rollouts
from rollouts.store import StepRecord
from rollouts.types import Prompt, Rollout

PROMPTS = [Prompt(name, f"Say {name}.", f"Say {name}.") for name in ("b", "a", "c")]


def rollout(prompt: Prompt, index: int) -> Rollout:
    random = np.random.default_rng([PROMPTS.index(prompt), index])
    codes = random.integers(0, 16, (1 + index, 4))
    return Rollout(prompt, index, 0, codes, np.zeros((1 + index, 4), np.float32), None, "length", 1)


def record(rollouts: Iterator[Rollout], codec: Codec | None = None) -> StepRecord:
    nodes = {"length": {"type": "duration", "run": {"batch_size": 4}}}
    graph = build_graph({"nodes": nodes, "total": "length"})
    codec = codec or load_codec("tiny")
    return score_rollouts(rollouts, PROMPTS, codec, graph, step=3, split="train", config_hash="0")


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


def test_sampling_never_waits_for_the_decoder() -> None:
    sampled = threading.Event()

    class Slow(TinyCodec):
        def decode_batch(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
            assert sampled.wait(60), "the sampler waits for the decoder"
            return super().decode_batch(codes)

    def rollouts() -> Iterator[Rollout]:
        for index in range(3 * DECODED_AT_ONCE):
            yield rollout(PROMPTS[0], index)
        sampled.set()

    found = record(rollouts(), Slow.load(EMBEDDED / "codec"))
    assert len(found.rollouts) == 3 * DECODED_AT_ONCE


def test_an_error_of_the_sampler_is_raised_here() -> None:
    def rollouts() -> Iterator[Rollout]:
        yield rollout(PROMPTS[0], 0)
        raise CheckpointError("the engine holds parts of two versions")

    with pytest.raises(CheckpointError, match="two versions"):
        record(rollouts())


def test_an_error_of_the_decoder_ends_the_sampling() -> None:
    ended = []

    def rollouts() -> Iterator[Rollout]:
        try:
            for index in itertools.count():
                yield replace(rollout(PROMPTS[0], 0), sample_index=index, codes=np.full((1, 4), 5000))
        finally:
            ended.append(True)

    with pytest.raises(ValueError, match="codes must lie in"):
        record(rollouts())
    assert ended == [True]
