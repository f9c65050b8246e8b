"""Reading prompt sets: JSON Lines, one prompt a line, or the embedded ``tiny:train`` and ``tiny:heldout``.

``tiny:train_styled`` and ``tiny:heldout_styled`` are those of them with a style tag.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rewards.tags import parse_target, spoken_words
from rl.errors import PromptError
from rl.policy.loading import EMBEDDED
from rl.policy.prompts import check_user_text
from rollouts.types import Prompt

_FIELDS = ("id", "text", "spoken", "reference_audio", "references", "meta")
_STYLED = "_styled"
_OWN_TAG = re.compile(r"<\|speaker:(\d+)\|>")


def load_prompts(spec: str) -> list[Prompt]:
    """The prompts of ``spec``.

    A line holds ``text`` (with tags, as the policy reads it); optional: ``spoken`` (the words to hear;
    default the text without ``<|...|>`` and ``[...]`` tags), ``id`` (default the line number),
    ``reference_audio``, ``references`` and ``meta``. ``reference_audio`` is a file with the voice asked for,
    relative to this file, or a mapping of speaker numbers to files. As absolute paths they are kept in
    ``meta``: the first speaker's as ``reference_audio``, the whole mapping as ``voices``.

    ``references`` are voices for the policy to hear before it speaks: a list of ``{"audio": file, "text":
    what it says}``, of which the first is speaker 0's, unless the text begins with another's tag. They are
    kept in ``meta`` until `rl.references.ReferenceEncoder` has encoded them. Where there is no
    ``reference_audio`` they stand for it, too.

    Raises:
        PromptError: the file or a line is wrong; the message names both.
    """
    name = spec.removeprefix("tiny:").removesuffix(_STYLED)
    path = EMBEDDED / "prompts" / f"{name}.jsonl" if spec.startswith("tiny:") else Path(spec)
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise PromptError(f"prompts file {path} can't be read ({error}); name a JSON Lines file") from error
    prompts = [_prompt(line, path, number) for number, line in enumerate(lines, 1) if line.strip()]
    if spec.startswith("tiny:") and spec.endswith(_STYLED):
        prompts = [prompt for prompt in prompts if parse_target(prompt.text).instructions]
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
    return prompt_of({"id": str(number), **record}, path, where)


def prompt_of(record: Mapping[str, Any], path: Path, where: str) -> Prompt:
    """The prompt in a ``record`` with an ``id`` and the other fields of `load_prompts`.

    Files that it names are relative to the file ``path``. Raises `PromptError`, whose message begins with
    ``where``.
    """
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
    if "references" in record:
        meta["references"] = _references(record["references"], path, where)
        if named is None:
            meta["voices"] = _voices(meta["references"])
            speaker = next((turn.speaker for turn in parse_target(text).turns), None) or "0"
            if speaker in meta["voices"]:
                meta["reference_audio"] = meta["voices"][speaker]
    return Prompt(str(record["id"]), text, record.get("spoken", spoken_words(text)), (), meta)


def _references(listed: Any, prompts: Path, where: str) -> list[dict[str, str]]:
    """The references with absolute paths."""
    shape = "references must be a list of objects with `audio` and `text`"
    if not isinstance(listed, list) or not listed:
        raise PromptError(f"{where}: {shape}")
    references = []
    for one in listed:
        if not isinstance(one, dict) or set(one) != {"audio", "text"} or not isinstance(one["text"], str):
            raise PromptError(f"{where}: {shape}")
        check_user_text(one["text"], f"{where}, a reference's text")
        references.append({"audio": _audio_file(one["audio"], prompts, where), "text": one["text"]})
    return references


def _voices(references: list[dict[str, str]]) -> dict[str, str]:
    """The files by speaker, as the prompt will tag them."""
    tags = [_OWN_TAG.match(reference["text"]) for reference in references]
    names = [tag.group(1) if tag else str(place) for place, tag in enumerate(tags)]
    return {name: reference["audio"] for name, reference in zip(names, references, strict=True)}


def _audio_file(name: Any, prompts: Path, where: str) -> str:
    """The absolute path of a file beside the prompts."""
    if not isinstance(name, str):
        raise PromptError(f"{where}: reference_audio must be a file, or speaker numbers with a file each")
    audio = (prompts.parent / name).resolve()
    if not audio.is_file():
        raise PromptError(f"{where}: reference_audio {audio} is missing")
    return str(audio)
