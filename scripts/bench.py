#!/usr/bin/env python
"""Time a part of the project on this machine against what a plain implementation does.

    OMP_NUM_THREADS=2 python scripts/bench.py learner
    OMP_NUM_THREADS=2 python scripts/bench.py rollouts
    OMP_NUM_THREADS=1 python scripts/bench.py rewards --config grpo_tiny
    OMP_NUM_THREADS=1 python scripts/bench.py step

`bench.py PART --help` explains a part's options. Each prints what it measured, and one JSON object last.
"""

import argparse
import importlib
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # `scripts` is not an installed package

from rl.cli.common import run_main


def main() -> None:
    """Hand over to the part's own program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", choices=("learner", "rollouts", "rewards", "step"))
    parser.add_argument("options", nargs=argparse.REMAINDER, help="of the part")
    arguments = parser.parse_args()
    part = importlib.import_module(f"scripts.benchmarks.{arguments.part}")
    part.main(arguments.options)


if __name__ == "__main__":
    sys.exit(run_main(main))
