"""Prompts of your own."""

from __future__ import annotations

from pathlib import Path

from rl.evals.data import the_file
from rl.prompts_file import load_prompts
from rollouts.types import Prompt


def read(path: Path) -> list[Prompt]:
    """The prompts of a JSON Lines file as `rl.prompts_file.load_prompts` reads it, or of a folder with one.

    Raises `EvalError` or `PromptError`.
    """
    return load_prompts(str(the_file(path, "*.jsonl")))
