"""Inline tags such as [whisper], each where it stands, as the Fish Audio Instruction Benchmark has them."""

from __future__ import annotations

from pathlib import Path

from rewards.tags import parse_target
from rl.errors import EvalError
from rl.evals.data import the_file
from rl.prompts_file import load_prompts
from rollouts.types import Prompt


def read(path: Path) -> list[Prompt]:
    """The prompts of a JSON Lines file as `rl.prompts_file.load_prompts` reads it, or of a folder with one.

    Raises `PromptError`, and `EvalError` for a text without a tag, which has nothing to measure.
    """
    file = the_file(path, "*.jsonl")
    prompts = load_prompts(str(file))
    for prompt in prompts:
        if not parse_target(prompt.text).instructions:
            raise EvalError(
                f"{file}: {prompt.id} has no [tag] in its text; take it out, or use --suite custom"
            )
    return prompts
