"""InstructTTSEval: speak as a description asks (Huang et al., arXiv:2506.16381)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rewards.tags import spoken_words
from rl.errors import EvalError
from rl.evals.data import json_lines, the_file
from rl.prompts_file import prompt_of
from rollouts.types import Prompt

KINDS = ("APS", "DSD", "RP")
"""Acoustic parameters, a free description, a role to play."""

_SPEAKER = re.compile(r"<\|speaker:\d+\|>")


def read(path: Path) -> list[Prompt]:
    """One prompt for each instruction of a JSON Lines file, or of a folder that holds one.

    A line has ``id``, ``text`` and at least one of `KINDS`: the instruction, or an object that holds it as
    ``instruction``. A prompt's id is ``<id>_<kind>``. ``reference_audio`` may name a recording of the voice.
    The instruction is in ``meta`` and, as a tag, before the words, where S2 reads it. Raises `EvalError`.
    """
    file = the_file(path, "*.jsonl")
    prompts = []
    for where, row in json_lines(file, ("id", "text")):
        given = {kind: _instruction(row[kind], f"{where}: {kind}") for kind in KINDS if kind in row}
        if not given:
            raise EvalError(f"{where}: has none of the instructions {', '.join(KINDS)}")
        for kind, instruction in given.items():
            record: dict[str, Any] = {
                "id": f"{row['id']}_{kind}",
                "text": tagged(row["text"], instruction),
                "spoken": spoken_words(row["text"]),
                "meta": {"instruction": instruction, "kind": kind, "item": row["id"]},
            }
            if "reference_audio" in row:
                record["reference_audio"] = row["reference_audio"]
            prompts.append(prompt_of(record, file, where))
    return prompts


def tagged(text: str, instruction: str) -> str:
    """``text`` with ``instruction`` as a tag before its words, on one line, without brackets of its own."""
    speaker = _SPEAKER.match(text.strip())
    voice = speaker.group() if speaker else ""
    tag = " ".join(instruction.replace("[", "(").replace("]", ")").split())
    return f"{voice}[{tag}] {text.strip().removeprefix(voice).strip()}"


def _instruction(given: Any, where: str) -> str:
    text = given.get("instruction") if isinstance(given, dict) else given
    if not isinstance(text, str) or not text.strip():
        raise EvalError(f"{where} must be an instruction, or an object with one as `instruction`")
    return text.strip()
