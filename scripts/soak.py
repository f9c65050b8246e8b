#!/usr/bin/env python
"""Train for many short steps and see whether memory grows.

    OMP_NUM_THREADS=1 python scripts/soak.py --steps 500

Runs rl-train with few, short rollouts of the embedded voice, but with every part: engine, codec, reward
graph, rollout files, learner, checkpoints. Prints the resident memory of it and its children, the slope after
a warm-up with its 95 % interval, and exits with 1 where the slope is above the limit.

The slope is Theil and Sen's, the median over pairs, of means over blocks of steps, as neighbours are alike.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import theilslopes

SMALL = (
    "trainer.prompts_per_step=1",
    "rollouts.group_size=2",
    "rollouts.max_frames=16",
    "rollouts.kv_cache_gib=0.02",  # all of which is touched soon
    "trainer.save_every=20",
    "evaluation.enabled=false",
    "evaluation.monitors.outside=null",  # it would start Ray
    "trainer.log_every=50",
)
MAIN = "import sys; from rl.cli.train import main; sys.exit(main(sys.argv[1:]))"
BLOCK = 10
"""Steps."""


def resident_mib(process: psutil.Process) -> float:
    """Of ``process`` and all that it has started."""
    family = [process, *process.children(recursive=True)]
    return sum(one.memory_info().rss for one in family) / 2**20


def measured(command: list[str], metrics: Path) -> Iterator[float]:
    """MiB after each step of the run that ``command`` starts. Raises RuntimeError when it fails."""
    with subprocess.Popen(command) as run:
        done = 0
        while run.poll() is None:
            steps = metrics.read_bytes().count(b"\n") if metrics.exists() else 0
            if steps > done:
                size = resident_mib(psutil.Process(run.pid))
                yield from [size] * (steps - done)
                done = steps
            time.sleep(0.02)
    if run.returncode:
        raise RuntimeError(f"rl-train ended with {run.returncode}")


def slope(sizes: list[float]) -> tuple[float, float, float]:
    """KiB a step, and the ends of its 95 % interval."""
    whole = np.array(sizes[: len(sizes) // BLOCK * BLOCK]).reshape(-1, BLOCK).mean(1)
    found = theilslopes(whole, alpha=0.95)
    return tuple(1024 / BLOCK * value for value in (found.slope, found.low_slope, found.high_slope))


def main() -> int:
    """Run, print, judge."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the configuration")
    parser.add_argument("--config", default="grpo_tiny")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--warm-up", type=int, help="steps left out; default: a fifth")
    parser.add_argument("--limit", type=float, default=40.0, help="KiB a step")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = [f"output_dir={folder}", "name=soak", f"trainer.steps={arguments.steps}"]
        command = [sys.executable, "-c", MAIN, "--config", arguments.config]
        start, sizes = time.monotonic(), []
        for size in measured(
            [*command, *SMALL, *place, *arguments.overrides], Path(folder, "soak/metrics.jsonl")
        ):
            sizes.append(size)
            if len(sizes) % 50 == 0:
                print(
                    f"step {len(sizes):4}: {size:8.1f} MiB after {time.monotonic() - start:.0f} s", flush=True
                )
    warm_up = arguments.steps // 5 if arguments.warm_up is None else arguments.warm_up
    middle, low, high = slope(sizes[warm_up:])
    print(f"from step {warm_up + 1}: {middle:+.1f} KiB a step, 95 % interval {low:+.1f} to {high:+.1f}")
    print(f"limit: {arguments.limit:g} KiB a step")
    return int(middle > arguments.limit)


if __name__ == "__main__":
    sys.exit(main())
