"""The machine that a benchmark runs on, and the bounds that it sets."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def seconds_of(run: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def matmul_peak(size: int = 1024, tries: int = 8) -> float:
    """The best fp32 matmul rate seen on this machine, FLOP/s."""
    a, b = torch.randn(2, size, size)
    return max(2 * size**3 / seconds_of(lambda: torch.mm(a, b)) for _ in range(tries))


def copy_bandwidth(mebibytes: int = 256, tries: int = 8) -> float:
    """The best rate of a copy between buffers larger than the caches, bytes read plus written per second."""
    source = torch.zeros(mebibytes << 18)
    target = torch.empty_like(source)
    return max(2 * source.nbytes / seconds_of(lambda: target.copy_(source)) for _ in range(tries))


def describe() -> dict[str, Any]:
    """Processor, cores, threads, torch's version, matmul peak in GFLOP/s and copy bandwidth in GB/s."""
    return {
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "matmul_gflops": round(matmul_peak() / 1e9, 1),
        "copy_gb_per_s": round(copy_bandwidth() / 1e9, 1),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
