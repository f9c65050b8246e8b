"""``rl-doctor``: can a configuration run here, and if not, what is missing?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rl.cli.common import need_config, new_parser, run_main
from rl.config import load_config

PROG = "rl-doctor"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` defaults to the process's arguments. Returns 1 for a configuration that can't
    run."""
    faults: list[str] = []
    return run_main(lambda: _examine(argv, faults)) or (1 if faults else 0)


def _examine(argv: Sequence[str] | None, faults: list[str]) -> None:
    parser = new_parser(
        PROG, "Find out whether a configuration can run on this machine, and what is missing."
    )
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON")
    args = parser.parse_intermixed_args(argv)
    config = load_config(need_config(PROG, args.config), args.overrides)

    from rich.console import Console

    from rl.doctor.examine import examine
    from rl.doctor.output import print_report, write_json

    report = examine(config)
    print_report(report, Console())
    if args.json:
        write_json(report, Path(args.json))
    faults += [check.name for check in report.faults]
