"""Ray: is the cluster there, and has it room for all that the configuration puts on it?"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from rl.doctor.check import Check, failed
from rl.doctor.machine import Machine
from rl.doctor.rewards import Nodes
from rl.errors import ClusterError
from rl.schema import RunConfig

SECONDS = 5.0
"""That a cluster's port may take to answer."""


@dataclass(frozen=True)
class Demand:
    """``count`` processes of ``what``, with ``cpus`` and ``gpus`` each."""

    what: str
    count: int
    cpus: float
    gpus: float


def demands(run: RunConfig, found: Nodes) -> list[Demand]:
    """What a run asks Ray for."""
    asked, cluster = [], run.cluster
    if cluster.learners > 1:
        sizes = (cluster.learner_cpus, cluster.learner_gpus)
        asked.append(Demand("cluster.learners", cluster.learners, *sizes))
    if run.rollouts.workers:
        sizes = (run.rollouts.worker_cpus, run.rollouts.worker_gpus)
        asked.append(Demand("rollouts.workers", run.rollouts.workers, *sizes))
    for name, pool in found.graph.pools.items() if found.graph else ():
        options = pool.options
        if options.where == "ray":
            cpus = 1.0 if options.num_cpus is None else options.num_cpus
            asked.append(Demand(f"reward {name}", options.workers, cpus, options.num_gpus))
    return asked


def first_without_room(asked: Sequence[Demand], machines: Sequence[tuple[float, float]]) -> Demand | None:
    """The first of ``asked`` that isn't placed whole on ``machines`` (CPUs and GPUs of each); None: all are.

    The largest first, each where it fits first: what that places, Ray can place too.
    """
    left = [list(machine) for machine in machines]
    for demand in sorted(asked, key=lambda demand: (demand.gpus, demand.cpus), reverse=True):
        for _ in range(demand.count):
            fits = (one for one in left if one[0] + 1e-6 >= demand.cpus and one[1] + 1e-6 >= demand.gpus)
            if (one := next(fits, None)) is None:
                return demand
            one[0], one[1] = one[0] - demand.cpus, one[1] - demand.gpus
    return None


def cluster(run: RunConfig, found: Nodes, machine: Machine) -> list[Check]:
    """Nothing for a run in one process; else whether the cluster can be joined and has room."""
    asked, address = demands(run, found), run.cluster.address
    if not asked:
        if address is None:
            return []
        remedy = "set rollouts.workers, or a reward node's run: {where: ray}"
        return [Check("Ray", f"nothing would run at {address}", "warning", remedy)]
    if address is None:
        here = [(float(machine.cores), float(len(machine.gpus)))]
        return [_room(asked, here, "one started on this machine"), *_on_cpu(run, machine)]
    if (unreachable := _closed(address)) is not None:
        return [unreachable]
    import ray

    from rl.cluster import connect

    joined = ray.is_initialized()
    try:
        connect(address)
        alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    except ClusterError as error:
        return [failed("Ray", error)]
    except RuntimeError as error:  # another version of Ray or of Python
        words = f"{address}: {' '.join(str(error).split())}"
        return [Check("Ray", words, "cannot run", "install the cluster's versions of Python and Ray here")]
    finally:
        if not joined:
            ray.shutdown()
    machines = [(has.get("CPU", 0.0), has.get("GPU", 0.0)) for has in alive]
    return [_room(asked, machines, f"{address}, {len(machines)} nodes"), *_on_cpu(run, machine)]


def _room(asked: Sequence[Demand], machines: Sequence[tuple[float, float]], where: str) -> Check:
    cpus, gpus = (sum(machine[kind] for machine in machines) for kind in (0, 1))
    has = f"{where}: {cpus:g} CPUs, {gpus:g} GPUs"
    short = first_without_room(asked, machines)
    if short is None:
        needs = [
            sum(one.count * size for one, size in zip(asked, sizes, strict=True)) for sizes in _sizes(asked)
        ]
        return Check("Ray", f"{has}; the run takes {needs[0]:g} and {needs[1]:g}")
    wants = f"{short.what}: {short.count} with {short.cpus:g} CPUs and {short.gpus:g} GPUs each"
    return Check(
        "Ray", f"{has}: no room for {wants}", "cannot run", "lower their number or size, or add nodes"
    )


def _sizes(asked: Sequence[Demand]) -> tuple[list[float], list[float]]:
    return [one.cpus for one in asked], [one.gpus for one in asked]


def _on_cpu(run: RunConfig, machine: Machine) -> list[Check]:
    """Workers that Ray would keep off the GPUs that are there."""
    if not (machine.gpus and run.rollouts.workers and run.rollouts.worker_gpus == 0):
        return []
    words = "rollout workers would sample on CPUs: Ray hides the GPUs from them"
    return [Check("Ray", words, "warning", "set rollouts.worker_gpus")]


def _closed(address: str) -> Check | None:
    """Where nothing listens, Ray itself takes long to say so. ``auto`` and ``ray://`` are left to it."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        return None
    try:
        socket.create_connection((host, int(port)), SECONDS).close()
    except OSError as error:
        remedy = "start it with `ray start --head`, or set cluster.address to null"
        return Check("Ray", f"nothing answers at {address} ({error.strerror or error})", "cannot run", remedy)
    return None
