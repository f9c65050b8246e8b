"""Engines in Ray actors sample as one engine in one process does, also when a worker is killed."""

import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from ray import cloudpickle

from rl.cluster import check_room, connect
from rl.errors import CheckpointError, ClusterError, PromptError
from rl.policy.loading import load_policy
from rollouts.engine import StreamingEngine
from rollouts.ray_engine import RayEngine
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, Rollout, SamplingParams

GOLDEN = Path(__file__).parent.parent / "rl" / "fixtures" / "s2_tiny"
PROMPTS = [Prompt(f"p{i}", "Say it." + " And again." * i, "say it") for i in range(4)]
SAMPLING = SamplingParams(max_frames=6)
CONTROL = Prompt("x", "<|im_end|>", "x")
NORM = "text_model.model.norm.weight"

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers don't have this module


class Mortal(TorchEngine):
    """Kills its process after the second rollout that it hands over, as long as ``fate`` exists."""

    fate: Path

    def stream(
        self, prompts: Sequence[Prompt], n: int, sampling: SamplingParams, seed: int
    ) -> Iterator[Rollout]:
        for count, rollout in enumerate(super().stream(prompts, n, sampling, seed)):
            if count == 2 and self.fate.exists() and prompts[0].id == "p2":
                if self.fate.read_text() == "once":
                    self.fate.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            yield rollout


def build(fate: Path) -> Mortal:
    torch.set_num_threads(1)
    model, tokenizer = load_policy(str(GOLDEN))
    engine = Mortal(model, tokenizer)
    engine.fate = fate
    return engine


@pytest.fixture(scope="module")
def fate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ray") / "fate"


@pytest.fixture(scope="module")
def pool(fate: Path) -> Iterator[RayEngine]:
    """Two workers on a cluster of this machine alone; starting them takes most of the tests' time."""
    connect(None)
    pool = RayEngine(partial(build, fate), workers=2, cpus=0.25, gpus=0)
    yield pool
    pool.close()
    ray.shutdown()


def assert_equal(left: Sequence[Rollout], right: Sequence[Rollout], *, exact: bool = True) -> None:
    for a, b in zip(left, right, strict=True):
        assert (a.prompt, a.sample_index, a.seed, a.policy_version) == (
            b.prompt, b.sample_index, b.seed, b.policy_version
        )  # fmt: skip
        assert a.finish_reason == b.finish_reason
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_allclose(a.logprobs, b.logprobs, rtol=0, atol=0 if exact else 1e-5)
        assert a.end_logprob == (b.end_logprob if exact else pytest.approx(b.end_logprob, abs=1e-5))


def test_workers_sample_what_one_process_samples(pool: RayEngine, fate: Path) -> None:
    assert isinstance(pool, StreamingEngine)
    alone = build(fate)
    pool.version = alone.version = 7
    norm = dict(alone.model.named_parameters())[NORM].detach().clone()
    for scale in (0.5, 1.5):
        for engine in (pool, alone):
            engine.wake()
            engine.load_weights({NORM: norm * scale})
        together = pool.generate(PROMPTS, 3, SAMPLING, 1)
        assert_equal(together, alone.generate(PROMPTS, 3, SAMPLING, 1), exact=False)
        pool.sleep()
    pool.wake()
    assert {rollout.policy_version for rollout in together} == {9}
    assert [(r.prompt.id, r.sample_index) for r in together[2:4]] == [("p0", 2), ("p1", 0)]
    fewer = pool.generate(PROMPTS[:1], 2, SAMPLING, 1)
    assert [rollout.sample_index for rollout in fewer] == [0, 1]


def test_samples_arrive_as_they_finish(pool: RayEngine) -> None:
    rollouts = list(pool.stream(PROMPTS, 8, SamplingParams(max_frames=12), 5))
    assert len({(r.prompt.id, r.sample_index) for r in rollouts}) == 32
    for block in (("p0", "p1"), ("p2", "p3")):
        lengths = [len(r.codes) for r in rollouts if r.prompt.id in block]
        assert lengths == sorted(lengths)
        assert lengths[0] < lengths[-1]


def test_a_worker_killed_in_the_middle_changes_nothing(pool: RayEngine, fate: Path) -> None:
    undisturbed = pool.generate(PROMPTS, 3, SAMPLING, 1)
    before = pool.pids
    fate.write_text("once")
    disturbed = pool.generate(PROMPTS, 3, SAMPLING, 1)
    assert not fate.exists()
    assert (pool.pids[0] == before[0], pool.pids[1] == before[1]) == (True, False)
    assert_equal(undisturbed, disturbed)


def test_a_worker_killed_between_two_steps_is_replaced(pool: RayEngine) -> None:
    weights = {NORM: torch.ones(dict(build(Path()).model.named_parameters())[NORM].shape)}
    pool.load_weights(weights)
    undisturbed = pool.generate(PROMPTS, 3, SAMPLING, 1)
    pool.sleep()
    os.kill(pool.pids[0], signal.SIGKILL)
    pool.wake()
    pool.version -= 1
    pool.load_weights(weights)
    assert_equal(undisturbed, pool.generate(PROMPTS, 3, SAMPLING, 1))


@pytest.mark.parametrize(
    ("act", "error", "words"),
    [
        (lambda pool: pool.load_weights({"x": torch.zeros(1)}), CheckpointError, "no parameter `x`"),
        (lambda pool: pool.generate([CONTROL], 1, SAMPLING, 1), PromptError, "control token"),
    ],
)
def test_errors_of_the_engine_arrive_as_they_are(
    pool: RayEngine, act: Callable[[RayEngine], object], error: type[Exception], words: str
) -> None:
    version = pool.version
    with pytest.raises(error, match=words) as caught:
        act(pool)
    assert "\n" not in str(caught.value)
    assert pool.generate(PROMPTS[:1], 1, SAMPLING, 1)[0].policy_version == pool.version == version


def test_what_does_not_fit_is_said(pool: RayEngine) -> None:
    check_room(2, 0.5, 0)
    with pytest.raises(
        ClusterError, match=r"rollouts\.workers: 9999 with 1 CPUs and 0 GPUs each.*room for \d"
    ):
        check_room(9999, 1, 0)
    with pytest.raises(ClusterError, match="room for 0"):
        check_room(1, 0.5, 99)


@pytest.mark.slow
def test_a_worker_that_always_dies_is_given_up(pool: RayEngine, fate: Path) -> None:
    fate.write_text("always")
    with pytest.raises(ClusterError, match="worker 1 died 3 times in a row") as caught:
        pool.generate(PROMPTS, 3, SAMPLING, 1)
    assert "\n" not in str(caught.value)
