"""Reading prompt sets: JSON Lines, one prompt a line, or the embedded ``tiny:train`` and ``tiny:heldout``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewards.tags import TAG, parse_target
from rl.errors import PromptError
from rl.policy.loading import EMBEDDED
from rl.policy.prompts import check_user_text
from rollouts.types import Prompt

_FIELDS = ("id", "text", "spoken", "reference_audio", "meta")


def load_prompts(spec: str) -> list[Prompt]:
    """The prompts of ``spec``.

    A line holds ``text`` (with tags, as the policy reads it); optional: ``spoken`` (the words to hear;
    default the text without ``<|...|>`` and ``[...]`` tags), ``id`` (default the line number),
    ``reference_audio`` and ``meta``. ``reference_audio`` is a file with the voice asked for, relative to this
    file, or a mapping of speaker numbers to files. As absolute paths they are kept in ``meta``: the first
    speaker's as ``reference_audio``, the whole mapping as ``voices``.

    Raises:
        PromptError: the file or a line is wrong; the message names both.
    """
    embedded = EMBEDDED / "prompts" / f"{spec.removeprefix('tiny:')}.jsonl"
    path = embedded if spec.startswith("tiny:") else Path(spec)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"prompts file {path} can't be read ({error}); name a JSON Lines file") from error
    prompts = [_prompt(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if not prompts:
        raise PromptError(f"prompts file {path} holds no prompt")
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise PromptError(f"prompts file {path}: id `{prompt.id}` stands twice; ids seed the samples")
        seen.add(prompt.id)
    return prompts


def _prompt(line: str, path: Path, number: int) -> Prompt:
    where = f"prompts file {path}, line {number}"
    try:
        record: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise PromptError(f"{where}: not JSON ({error.msg})") from error
    if not isinstance(record, dict):
        raise PromptError(f"{where}: must be a JSON object with a `text`")
    unknown = sorted(set(record) - set(_FIELDS))
    if unknown:
        raise PromptError(f"{where}: unknown field `{unknown[0]}`; known: {', '.join(_FIELDS)}")
    text = record.get("text")
    if not isinstance(text, str):
        raise PromptError(f"{where}: `text` is missing or not text")
    check_user_text(text, where)
    meta = dict(record.get("meta", {}))
    named = record.get("reference_audio")
    if isinstance(named, dict):
        speakers = [turn.speaker or "0" for turn in parse_target(text).turns]
        for speaker in speakers:
            if speaker not in named:
                raise PromptError(f"{where}: reference_audio has no speaker {speaker}, whom the text names")
        meta["voices"] = {speaker: _audio_file(file, path, where) for speaker, file in named.items()}
        if speakers:
            meta["reference_audio"] = meta["voices"][speakers[0]]
    elif named is not None:
        meta["reference_audio"] = _audio_file(named, path, where)
    return Prompt(str(record.get("id", number)), text, record.get("spoken", spoken_words(text)), (), meta)


def _audio_file(name: Any, prompts: Path, where: str) -> str:
    """The absolute path of a file beside the prompts."""
    if not isinstance(name, str):
        raise PromptError(f"{where}: reference_audio must be a file, or speaker numbers with a file each")
    audio = (prompts.parent / name).resolve()
    if not audio.is_file():
        raise PromptError(f"{where}: reference_audio {audio} is missing")
    return str(audio)


def spoken_words(text: str) -> str:
    """The text without ``<|...|>`` and ``[...]`` tags, blanks collapsed."""
    return " ".join(TAG.sub(" ", text).split())
