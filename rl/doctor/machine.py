"""What this machine has: GPUs, memory, cores."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from rl.doctor.check import Check, gib

_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)
"""Where either version of control groups says what a container may take, has taken, and could give back."""


@dataclass(frozen=True)
class Gpu:
    """``total`` and ``free``: bytes."""

    name: str
    total: int
    free: int


@dataclass(frozen=True)
class Machine:
    """``memory``: bytes that new processes may take. ``cores``: as Ray counts them."""

    gpus: tuple[Gpu, ...]
    memory: int
    cores: int


def this_machine() -> Machine:
    """What is here and free now. Raises RuntimeError where CUDA is there and fails."""
    gpus = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        gpus.append(Gpu(torch.cuda.get_device_name(index), total, free))
    memory = min(_memory("MemAvailable"), _left_to_container())
    return Machine(tuple(gpus), memory, os.cpu_count() or 1)


def gpus(machine: Machine) -> Check:
    """The GPUs seen. None is no fault: everything runs on a CPU, if slowly."""
    if not machine.gpus:
        return Check("GPUs", f"none; {machine.cores} cores")
    each = ", ".join(f"{gpu.name} ({gib(gpu.free)} of {gib(gpu.total)} free)" for gpu in machine.gpus)
    return Check("GPUs", each)


def _left_to_container() -> int:
    """Bytes until the container's limit; the machine's memory where there is none."""
    for folder, limit, usage, reclaimable in _GROUPS:
        files = [Path(folder, name) for name in (limit, usage, "memory.stat")]
        if all(file.is_file() for file in files):
            most, taken, statistics = (file.read_text().split() for file in files)
            if most != ["max"]:
                cache = int(statistics[statistics.index(reclaimable) + 1])
                return max(0, int(most[0]) - int(taken[0]) + cache)
    return _memory("MemTotal")


def _memory(name: str) -> int:
    """A line of /proc/meminfo, in bytes."""
    fields = Path("/proc/meminfo").read_text().split()
    return 1024 * int(fields[fields.index(f"{name}:") + 1])
