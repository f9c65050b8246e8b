"""docs/scaling.md: its tables are those that the functions make, and its prose has no other figures."""

from __future__ import annotations

import re
from pathlib import Path

from rl.arithmetic.scaling import TABLES, fill

PAGE = (Path(__file__).parents[3] / "docs" / "scaling.md").read_text(encoding="utf-8")
ASSUMED = {"60 %", "40 %", "4 µs", "12 s", "80 GB"}
"""Said to be so in the page, and constants in rl/arithmetic."""


def test_the_tables_are_up_to_date() -> None:
    assert all(f"<!-- {name} -->\n|" in PAGE for name in TABLES)
    assert fill(PAGE) == PAGE, "run scripts/scaling.py"


def test_figures_in_the_prose_stand_in_a_table() -> None:
    prose = "\n".join(line for line in PAGE.splitlines() if not line.startswith("|"))
    figures = set(re.findall(r"\d[\d,.]* (?:%|µs|ms|s|GB|GiB|MB|[GT]FLOP)(?![\w-])", prose))
    tables = "\n".join(line for line in PAGE.splitlines() if line.startswith("|"))
    assert {figure for figure in figures if figure not in tables} <= ASSUMED
