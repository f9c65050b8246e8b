"""Recipes of the functions in `conftest`."""

from __future__ import annotations

from typing import Any


def recipe(total: str, **functions: str) -> dict[str, Any]:
    """A rewards block whose nodes are functions of the module `planted`."""
    nodes = {
        name: {"type": "function", "path": f"planted:{function}"} for name, function in functions.items()
    }
    return {"nodes": nodes, "total": total}
