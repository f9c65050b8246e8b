"""``rl-export``: a trained adapter as a checkpoint in the published layout."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rl.cli.common import run_main


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` defaults to the process's arguments. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="rl-export",
        description="Merge a trained adapter into its policy: a checkpoint in the published layout, with a "
        "model card and the licence's notices.",
        epilog="example:\n  rl-export runs/grpo_s2 --out checkpoints/s2-mine",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", type=Path, help="a run's folder (its last checkpoint), or an adapter's")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a folder that doesn't exist")
    parser.add_argument(
        "--base", metavar="DIR", help="the policy's folder, where it isn't any more where training found it"
    )
    arguments = parser.parse_args(argv)
    return run_main(lambda: _export(arguments))


def _export(arguments: argparse.Namespace) -> None:
    from rl.export.merge import export  # imports torch, which --help needn't wait for

    print(export(arguments.source, arguments.out, arguments.base))
