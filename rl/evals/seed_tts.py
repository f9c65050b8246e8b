"""seed-tts-eval: say a text in the voice of a recording (Anastassiou et al., arXiv:2406.02430)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rl.errors import EvalError
from rl.evals.data import numbered_lines, the_file
from rl.prompts_file import prompt_of
from rollouts.types import Prompt


@dataclass(frozen=True)
class MetaLine:
    """A line of ``meta.lst``, and ``where`` it stands. ``prompt_wav`` is relative to the file or absolute."""

    where: str
    utt: str
    prompt_text: str
    prompt_wav: str
    text: str


def read(path: Path) -> list[Prompt]:
    """The prompts of a ``meta.lst`` (or ``hardcase.lst``), or of a folder that holds one.

    Raises `EvalError`, and `PromptError` for a recording that isn't there.
    """
    file = the_file(path, "meta.lst", "*.lst")
    return [
        prompt_of(
            {
                "id": line.utt,
                "text": line.text,
                "spoken": line.text,
                "references": [{"audio": line.prompt_wav, "text": line.prompt_text}],
            },
            file,
            line.where,
        )
        for line in meta_lines(file)
    ]


def meta_lines(file: Path) -> Iterator[MetaLine]:
    """The lines ``utt|prompt text|prompt wav|text``; a fifth field, the true recording, isn't used.

    Raises `EvalError` for a line of another form.
    """
    for where, line in numbered_lines(file):
        fields = [field.strip() for field in line.split("|")]
        if len(fields) not in (4, 5):
            raise EvalError(
                f"{where}: {len(fields)} fields; seed-tts-eval's lines are utt|prompt text|prompt wav|text"
            )
        if not all(fields[:4]):
            empty = ("utt", "prompt text", "prompt wav", "text")[fields.index("")]
            raise EvalError(f"{where}: the {empty} is empty")
        yield MetaLine(where, *fields[:4])
