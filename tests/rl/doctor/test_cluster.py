"""Is the cluster there, and does what is asked of it fit?"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
from ray.cluster_utils import Cluster

from rl.doctor import rewards
from rl.doctor.check import Check
from rl.doctor.cluster import Demand, cluster, demands, first_without_room
from rl.doctor.machine import Gpu, Machine
from rl.schema import RunConfig

ACTORS = "rewards.nodes.heard={type: pocketsphinx, monitor: true, run: {where: ray, workers: 2, num_cpus: 3}}"


def checked(run: RunConfig, machine: Machine) -> list[Check]:
    return cluster(run, rewards.nodes(run)[1], machine)


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """The address of a cluster with two CPUs."""
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    yield started.address
    ray.shutdown()
    started.shutdown()


def test_a_run_in_one_process_needs_no_ray(configure, laptop: Machine) -> None:
    assert checked(configure(), laptop) == []


def test_a_cluster_for_nothing(configure, laptop: Machine) -> None:
    (check,) = checked(configure("cluster.address=10.0.0.1:6379"), laptop)
    assert (check.verdict, check.found) == ("warning", "nothing would run at 10.0.0.1:6379")


def test_what_is_asked_for(configure) -> None:
    run = configure("rollouts.workers=3", "rollouts.worker_cpus=2", "rollouts.worker_gpus=0.5", ACTORS)
    assert demands(run, rewards.nodes(run)[1]) == [
        Demand("rollouts.workers", 3, 2.0, 0.5),
        Demand("reward heard", 2, 3.0, 0.0),
    ]


def test_learners_are_asked_for_too(configure) -> None:
    run = configure("cluster.learners=2", "cluster.learner_cpus=3", "cluster.learner_gpus=1")
    assert demands(run, rewards.nodes(run)[1]) == [Demand("cluster.learners", 2, 3.0, 1.0)]


def test_room_on_this_machine(configure, laptop: Machine) -> None:
    (check,) = checked(configure("rollouts.workers=4"), laptop)
    assert (check.verdict, check.found) == (
        "ok",
        "one started on this machine: 4 CPUs, 0 GPUs; the run takes 4 and 0",
    )
    (check,) = checked(configure("rollouts.workers=5"), laptop)
    assert check.verdict == "cannot run"
    assert "no room for rollouts.workers: 5 with 1 CPUs and 0 GPUs each" in check.found
    (check,) = checked(configure("rollouts.workers=1", ACTORS), laptop)
    assert "no room for reward heard: 2 with 3 CPUs" in check.found, "together they don't fit"


def test_gpus_that_ray_would_hide(configure) -> None:
    machine = Machine((Gpu("H200", 141 * 10**9, 140 * 10**9),), 16 * 2**30, 4)
    _, hidden = checked(configure("rollouts.workers=1"), machine)
    assert (hidden.verdict, hidden.remedy) == ("warning", "set rollouts.worker_gpus")
    assert len(checked(configure("rollouts.workers=1", "rollouts.worker_gpus=1"), machine)) == 1


def test_placement_is_machine_by_machine() -> None:
    two = Demand("a", 2, 3.0, 0.0)
    assert first_without_room([two], [(4, 0), (4, 0)]) is None
    assert first_without_room([two], [(5, 0)]) == two, "five CPUs hold one of three, and two more"
    assert first_without_room([Demand("b", 4, 1.0, 0.25)], [(4, 1)]) is None
    large, small = Demand("large", 1, 4.0, 0.0), Demand("small", 1, 1.0, 0.0)
    assert first_without_room([small, large], [(4, 0), (1, 0)]) is None, "the largest goes first"
    assert first_without_room([small, large], [(4, 0)]) == small


def test_a_closed_port(configure, laptop: Machine, closed_port: int) -> None:
    (check,) = checked(configure("rollouts.workers=1", f"cluster.address=127.0.0.1:{closed_port}"), laptop)
    assert check.verdict == "cannot run"
    assert f"nothing answers at 127.0.0.1:{closed_port}" in check.found
    assert "ray start --head" in check.remedy


def test_a_host_that_does_not_exist(configure, laptop: Machine) -> None:
    (check,) = checked(configure("rollouts.workers=1", "cluster.address=no-such-host.invalid:6379"), laptop)
    assert check.verdict == "cannot run"


@pytest.mark.slow
def test_a_real_cluster_with_room_and_without(configure, laptop: Machine, small: str) -> None:
    (check,) = checked(configure("rollouts.workers=2", f"cluster.address={small}"), laptop)
    assert (check.verdict, check.found) == ("ok", f"{small}, 1 nodes: 2 CPUs, 0 GPUs; the run takes 2 and 0")
    (check,) = checked(configure("rollouts.workers=3", f"cluster.address={small}"), laptop)
    assert check.verdict == "cannot run"
    assert "no room for rollouts.workers: 3" in check.found
    assert not ray.is_initialized(), "it leaves the cluster again"
