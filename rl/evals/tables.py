"""An evaluation's tables, for the terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl.evals.run import Result

_ARROWS = {"higher": "↑", "lower": "↓", "neither": ""}

Row = tuple[str, ...]


def print_result(result: Result, console: Console) -> None:
    """What was evaluated, and every table, within 80 columns."""
    console.print(heading(result), markup=False, soft_wrap=True)
    for title, columns, rows in tables(result):
        table = Table(
            title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True
        )
        for place, column in enumerate(columns):
            table.add_column(column, justify="right" if place else "left", no_wrap=True)
        for row in rows:
            table.add_row(*map(Text, row))
        console.print(table)
    for reason in reasons(result):
        console.print(reason, markup=False, soft_wrap=True)


def markdown(result: Result) -> str:
    """The same as a page."""
    parts = [f"# {result.request.suite}", heading(result)]
    for title, columns, rows in tables(result):
        rule = ["---", *["---:"] * (len(columns) - 1)]
        lines = [_markdown_row(cells) for cells in (columns, rule, *rows)]
        parts += [f"## {title}", "\n".join(lines)]
    if found := reasons(result):
        parts += ["## Missing", "\n".join(f"- {reason}" for reason in found)]
    parts.append(
        "Means over the items that have a value, with 95 % bootstrap intervals by item; missing values are "
        f"counted, never 0. Measured by `{Path(result.recipe.file).name}`; docs/evaluation.md tells how this "
        "differs from the published protocol."
    )
    return "\n\n".join(parts) + "\n"


def heading(result: Result) -> str:
    """One line: how many items, of which data, by whom."""
    request = result.request
    against = "" if result.other is None else f" against {result.other.name}"
    policy = f" of {request.config.model.path}" if request.audio is None and request.config else ""
    items = f"{len(result.prompts)} items of {request.data}"
    return f"{request.suite}, {items}: {result.side.name}{policy}{against}"


def tables(result: Result) -> list[tuple[str, Row, list[Row]]]:
    """Title, headings and rows of each table that there is."""
    found: list[tuple[str, Row, list[Row]]] = [
        ("Figures", ("figure", "items of", "mean", "95% interval", "values", "missing"), _figures(result))
    ]
    if result.differences:
        headings = ("figure", "items of", "against", "this", "change", "95% interval", "pairs")
        found.append(("Change", headings, _changes(result)))
    if result.preferences:
        columns = ("judge", "win rate", "95% interval", "both orders agree", "first heard", "missing")
        found.append(("Preferred, each pair in both orders", columns, _preferences(result)))
    return found


def _figures(result: Result) -> list[Row]:
    return [
        (
            _named(line.name, line.better),
            line.kind,
            _number(line.estimate.mean),
            _interval(line.estimate.low, line.estimate.high),
            str(line.estimate.values),
            str(line.estimate.missing),
        )
        for line in result.lines
    ]


def _changes(result: Result) -> list[Row]:
    return [
        (
            _named(one.name, one.better),
            one.kind,
            _number(one.comparison.before),
            _number(one.comparison.after),
            _number(one.comparison.delta, signed=True),
            _interval(one.comparison.low, one.comparison.high, signed=True),
            str(one.comparison.pairs),
        )
        for one in result.differences
    ]


def _preferences(result: Result) -> list[Row]:
    return [
        (
            one.judge,
            _number(one.wins.mean),
            _interval(one.wins.low, one.wins.high),
            _number(one.consistent),
            _number(one.first),
            str(one.wins.missing),
        )
        for one in result.preferences
    ]


def reasons(result: Result) -> list[str]:
    """Why values are missing: ``SIM (all): 3 x the prompt names no reference voice``."""
    lines = [(f"{line.name} ({line.kind})", line.missing) for line in result.lines]
    lines += [(one.judge, one.missing) for one in result.preferences]
    return [f"{name}: {count} x {why}" for name, missing in lines for why, count in missing.items()]


def _named(figure: str, better: str) -> str:
    return f"{figure} {_ARROWS[better]}".strip()


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _number(value: float, *, signed: bool = False) -> str:
    if math.isnan(value):
        return "-"
    return f"{value:+.3f}" if signed else f"{value:.3f}"


def _interval(low: float, high: float, *, signed: bool = False) -> str:
    return "-" if math.isnan(low) else f"{_number(low, signed=signed)} to {_number(high, signed=signed)}"
