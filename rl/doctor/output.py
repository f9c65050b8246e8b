"""The report for people, and for machines."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl.arithmetic.memory import WORDS
from rl.doctor.check import gib
from rl.doctor.examine import Report
from rl.errors import RunFolderError

_STYLES = {"ok": "green", "warning": "yellow", "cannot run": "bold red"}
_EACH = {"learner": "", "follower": ", each other learner", "worker": ", each worker"}


def print_report(report: Report, console: Console) -> None:
    """The estimate by component, the checks, and in the last line whether the configuration can run here."""
    if report.components:
        table = Table("memory, by component", "", "where", "while", box=box.SIMPLE_HEAD, pad_edge=False)
        for part in report.components:
            during = ", ".join(WORDS[phase] for phase in part.phases)
            during = "always" if len(part.phases) == len(WORDS) else during
            where = part.where + _EACH[part.process]
            table.add_row(part.name, gib(part.size), where, during)
        table.columns[1].justify = "right"
        console.print(table)
    table = Table("check", "found", "verdict", "remedy", box=box.SIMPLE_HEAD, pad_edge=False)
    for check in report.checks:
        verdict = Text(check.verdict, style=_STYLES[check.verdict], no_wrap=True)
        table.add_row(Text(check.name), Text(check.found), verdict, Text(check.remedy))
    for column in table.columns:
        column.overflow = "fold"
    console.print(table)
    console.print(verdict_line(report), markup=False, highlight=False, soft_wrap=True)


def verdict_line(report: Report) -> str:
    """Whether the configuration can run here, and if not, what keeps it."""
    warnings = sum(check.verdict == "warning" for check in report.checks)
    noted = f" ({warnings} warning{'s' * (warnings != 1)})" if warnings else ""
    if not report.faults:
        return f"{report.name} can run here{noted}"
    names = ", ".join(dict.fromkeys(check.name for check in report.faults))
    return f"{report.name} cannot run here: {names}{noted}"


def write_json(report: Report, file: Path) -> None:
    """``{"name", "can_run", "checks": [...], "components": [...]}``, sizes in bytes.

    Raises:
        RunFolderError: the file can't be written.
    """
    content = {
        "name": report.name,
        "can_run": not report.faults,
        "checks": [asdict(check) for check in report.checks],
        "components": [asdict(part) for part in report.components],
    }
    try:
        file.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise RunFolderError(
            f"--json {file}: can't be written ({error.strerror}); name another file"
        ) from error
