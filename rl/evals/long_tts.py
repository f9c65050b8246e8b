"""Long-TTS-Eval: texts of minutes (Wang et al., arXiv:2509.25131), in voices of seed-tts-eval."""

from __future__ import annotations

from pathlib import Path

from rl.evals.data import json_lines, the_file
from rl.evals.seed_tts import meta_lines
from rl.prompts_file import prompt_of
from rollouts.types import Prompt

VOICES = "meta.lst"
"""Beside the texts: seed-tts-eval's lines, whose recordings the texts take in turn."""


def read(path: Path) -> list[Prompt]:
    """The prompts of a JSON Lines file, or of a folder that holds one, with the voices of `VOICES`.

    A line has ``id``, ``text`` and ``text_norm``, the text as it is read out; ``category``, where there is
    one, is the ``kind``.

    Raises `EvalError`, and `PromptError` for a recording that isn't there.
    """
    file = the_file(path, "*.jsonl")
    voices_file = file.parent / VOICES
    voices = list(meta_lines(voices_file)) if voices_file.is_file() else []
    prompts = []
    for number, (where, row) in enumerate(json_lines(file, ("id", "text", "text_norm"))):
        meta = {"text_norm": row["text_norm"]}
        if isinstance(row.get("category"), str):
            meta["kind"] = row["category"]
        record = {"id": row["id"], "text": row["text"], "spoken": row["text"], "meta": meta}
        if voices:
            voice = voices[number % len(voices)]
            record["references"] = [{"audio": voice.prompt_wav, "text": voice.prompt_text}]
        prompts.append(prompt_of(record, file, where))
    return prompts
