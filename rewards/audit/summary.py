"""An audit on the terminal, within 80 columns."""

from __future__ import annotations

import math
from collections import Counter

from rich import box
from rich.console import Console
from rich.table import Table

from rewards.audit.run import Audit
from rewards.audit.settings import KINDS


def print_summary(audit: Audit, console: Console) -> None:
    """The outputs, the probes, and what failed."""
    data = audit.data
    steps = sorted(set(data.steps.tolist()))
    span = f", steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else ""
    console.print(
        f"{len(data)} clips in {len(set(data.groups.tolist()))} groups{span}: {data.source}",
        soft_wrap=True,
        markup=False,
    )
    console.print(f"total: {audit.rewards['total']}", markup=False, soft_wrap=True)
    console.print(outputs_table(audit))
    if audit.comparison is not None:
        one = audit.comparison
        console.print(
            f"{one.right} against {one.left}: rank correlation in groups {one.rank_correlation:.2f}, "
            f"{one.sign_changes:.0%} of the advantages change sign, "
            f"{one.other_best:.0%} of the best of {one.best_of} are others",
            markup=False,
            soft_wrap=True,
        )
    if audit.probes:
        console.print(probes_table(audit))
    failed = [check for check in audit.checks if not check.passed]
    passed = Counter(check.kind for check in audit.checks if check.passed)
    for check in failed:
        console.print(f"[red]FAILED[/red] {check.name}: ", end="")
        console.print(check.says, markup=False, soft_wrap=True)
    quiet = [f"{kind} {passed[kind]}" for kind in KINDS if passed[kind]]
    console.print(f"passed: {', '.join(quiet) or 'none'}", markup=False, soft_wrap=True)


def outputs_table(audit: Audit) -> Table:
    """Mean, spread, share of the variance and missing of every output."""
    table = _table("")
    for heading in ("role", "mean", "in group", "explains", "missing", "flat"):
        table.add_column(heading, justify="left" if heading == "role" else "right", no_wrap=True)
    for one in audit.diagnosis.outputs:
        table.add_row(
            one.name,
            one.role,
            _figure(one.mean),
            _figure(one.within_std),
            _percent(one.explained),
            _percent(one.missing),
            _percent(one.flat),
            style="bold" if one.role == "total" else None,
        )
    return table


def probes_table(audit: Audit) -> Table:
    """Each attack: share of the clips that score no lower under it."""
    table = _table("attack")
    for heading in ("clips", "fooled", "gated", "change", ""):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=bool(heading))
    for probe in audit.probes:
        if probe.skipped:
            table.add_row(probe.name, "", "", "", "", f"[dim]skipped: {probe.skipped}[/dim]")
            continue
        ok = probe.fooled <= audit.settings.max_fooled
        table.add_row(
            probe.name,
            str(probe.clips),
            _percent(probe.fooled),
            _percent(probe.gated),
            f"{probe.gain:+.3f}",
            "[green]ok[/green]" if ok else f"[red]fooled[/red] through {probe.culprit or 'the gate'}",
        )
    return table


def _table(first: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column(first, no_wrap=True)
    return table


def _figure(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.4g}"


def _percent(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
