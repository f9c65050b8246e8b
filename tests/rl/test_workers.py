"""A run whose rollouts are sampled in Ray workers is the run that samples by itself."""

from collections.abc import Callable

import numpy as np
import pytest
import ray

from rl.metrics import read_metrics
from rl.schema import RunConfig
from rl.trainer.run import train
from rollouts.store import iter_steps


@pytest.mark.slow
@pytest.mark.parametrize(("engine", "count"), [("torch", 2), ("vllm", 1)])
def test_workers_make_no_difference_to_the_learner(
    engine: str, count: int, configure: Callable[..., RunConfig]
) -> None:
    inside = train(configure("name=inside", "trainer.steps=2"))
    workers = [f"rollouts.engine={engine}", f"rollouts.workers={count}", "rollouts.worker_cpus=0.25"]
    outside = train(configure("name=outside", "trainer.steps=2", *workers))
    ray.shutdown()
    for left, right in zip(iter_steps(inside), iter_steps(outside), strict=True):
        np.testing.assert_array_equal(left.total, right.total)
        for a, b in zip(left.rollouts, right.rollouts, strict=True):
            np.testing.assert_array_equal(a.codes, b.codes)
            assert a.policy_version == b.policy_version == left.step
    for left_row, right_row in zip(
        read_metrics(inside / "metrics.jsonl"), read_metrics(outside / "metrics.jsonl"), strict=True
    ):
        assert left_row["learner/loss"] == pytest.approx(right_row["learner/loss"], rel=1e-3, abs=1e-7)
