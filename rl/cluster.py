"""Joining a Ray cluster, and whether what a configuration asks for fits on it."""

from __future__ import annotations

import logging

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


def check_room(workers: int, cpus: float, gpus: float) -> None:
    """Raise `ClusterError` unless ``workers`` of that size fit on the nodes that are alive.

    Counts what the nodes have, not what is free: other jobs may end.
    """
    room = 0
    for node in ray.nodes():
        if node["Alive"]:
            has = node["Resources"]
            fits = [has.get(kind, 0.0) / need for kind, need in (("CPU", cpus), ("GPU", gpus)) if need]
            room += int(min(fits) + 1e-6)
    if room < workers:
        raise ClusterError(
            f"rollouts.workers: {workers} with {cpus:g} CPUs and {gpus:g} GPUs each, but the Ray cluster has "
            f"room for {room}; lower workers, worker_cpus or worker_gpus, or add nodes"
        )
