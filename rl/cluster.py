"""Joining a Ray cluster, and whether what a configuration asks for fits on it."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import ray

from rl.errors import ClusterError


def connect(address: str | None) -> None:
    """Join the Ray cluster at ``address``, or start one on this machine that ends with this process (None).

    A process that is connected already stays where it is. Raises `ClusterError`.
    """
    if ray.is_initialized():
        return
    try:
        ray.init(
            address="local" if address is None else address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ClusterError(
            f"cluster.address: can't join the Ray cluster at {address} ({reason}); "
            "start one with `ray start --head`, or set it to null"
        ) from error


def check_room(workers: int, cpus: float, gpus: float, key: str = "rollouts.worker") -> None:
    """Raise `ClusterError` unless ``workers`` of that size fit on the nodes that are alive.

    Counts what the nodes have, not what is free: other jobs may end. ``key``: of the configuration, without
    the endings of the three numbers' keys.
    """
    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = [has.get(kind, 0.0) / need for kind, need in (("CPU", cpus), ("GPU", gpus)) if need]
            room += int(min(fits) + 1e-6)
    if room < workers:
        raise ClusterError(
            f"{key}s: {workers} with {cpus:g} CPUs and {gpus:g} GPUs each, but the Ray cluster has room for "
            f"{room}; lower it, {key}_cpus or {key}_gpus, or add nodes"
        )


def check_total(demands: Sequence[tuple[int, float, float]]) -> None:
    """Raise `ClusterError` unless the cluster has what ``demands`` ask for: actors, CPUs and GPUs of each.

    Without that, what starts first keeps what the others wait for, and the run never begins.
    """
    has = ray.cluster_resources()
    for place, kind in ((1, "CPU"), (2, "GPU")):
        need = sum(demand[0] * demand[place] for demand in demands)
        if need > has.get(kind, 0.0) + 1e-6:
            few = f"{kind.lower()}s"
            raise ClusterError(
                f"cluster: learners, rollout workers and reward actors ask for {need:g} {kind}s together, "
                f"but the Ray cluster has {has.get(kind, 0.0):g}; lower cluster.learner_{few}, "
                f"rollouts.worker_{few} or the num_{few} of reward nodes, or add nodes"
            )
