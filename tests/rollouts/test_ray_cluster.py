"""Workers on several nodes; a node that leaves takes nothing with it."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from rl.cluster import connect
from rl.config import load_config
from rl.errors import ClusterError
from rl.parts import build_engine
from rollouts.ray_engine import RayEngine
from rollouts.types import Prompt, SamplingParams

pytestmark = pytest.mark.slow
GOLDEN = Path(__file__).parent.parent / "rl" / "fixtures" / "s2_tiny"
PROMPTS = [Prompt(f"p{i}", "Say it." + " And again." * i, "say it") for i in range(4)]
SAMPLING = SamplingParams(max_frames=6)
BUILD = partial(build_engine, load_config("grpo_tiny", [f"model.path={GOLDEN}", "rollouts.engine=torch"]))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    connect(cluster.address)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_a_node_that_leaves_changes_nothing(cluster: Cluster) -> None:
    node = cluster.add_node(num_cpus=8)
    pool = RayEngine(BUILD, workers=2, cpus=0.5, gpus=0)
    large = RayEngine(BUILD, workers=1, cpus=4, gpus=0)  # has room on the new node only
    undisturbed = pool.generate(PROMPTS, 3, SAMPLING, 1)
    pids = pool.pids
    cluster.remove_node(node, allow_graceful=False)
    again = pool.generate(PROMPTS, 3, SAMPLING, 1)
    assert len(set(pids) & set(pool.pids)) == 1, "one worker was on each node"
    for a, b in zip(undisturbed, again, strict=True):
        np.testing.assert_array_equal(a.codes, b.codes)
        np.testing.assert_array_equal(a.logprobs, b.logprobs)
    with pytest.raises(ClusterError, match="room for 0"):
        large.generate(PROMPTS, 1, SAMPLING, 1)
    pool.close()
    large.close()
