"""Prompt formats: a prompt record becomes rows ``[1 + K, T]`` of token ids and codes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.errors import PromptError
from rl.policy.configuration import DualARConfig
from rollouts.types import Prompt

INSTRUCTION = "convert the provided text to speech"
ANSWER = "<|im_start|>assistant\n<|voice|>"
END = "<|im_end|>\n"
_CONTROL = re.compile(r"<\|(?!speaker:\d+\|>)[^<>|]*\|>")
_SPEAKER = re.compile(r"<\|speaker:\d+\|>")

Segment = str | np.ndarray
"""Text to tokenise by itself, or codes ``[T, K]`` of a voice to listen to."""


def check_user_text(text: str, where: str) -> None:
    """Refuse text that would be read as control tokens (speaker tags are ordinary text).

    Raises:
        PromptError: it holds a control token, or nothing.
    """
    found = _CONTROL.search(text)
    if found:
        raise PromptError(f"{where}: `{found.group()}` is a control token; remove it from the text")
    if not text.strip():
        raise PromptError(f"{where}: the text is empty")


def fish_s2_opening(prompt: Prompt) -> list[Segment]:
    """The system message: the instruction, and the voices to clone with all their codes in one run."""
    if not prompt.references:
        return ["<|im_start|>system\n", INSTRUCTION, END]
    return [
        "<|im_start|>system\n",
        f"{INSTRUCTION} reference to the following:\n\nText:\n",
        "\n".join(_tagged(prompt)),
        "\n\nSpeech:\n",
        np.concatenate([reference.codes for reference in prompt.references]),
        END,
    ]


def step_audio_3_opening(prompt: Prompt) -> list[Segment]:
    """ROLE, who speaks: ``meta["role"]`` and each reference's text and voice. DIRECTOR, how it should sound:
    ``meta["instruction"]``. What a prompt doesn't have is left out.

    The headings stand where only a control token can put them, so that no text can open a section.
    """
    segments: list[Segment] = []
    role = _words_of(prompt, "role")
    if role or prompt.references:
        segments.append("<|im_start|>ROLE\n")
        segments += [f"{role}\n"] if role else []
        for tagged, reference in zip(_tagged(prompt), prompt.references, strict=True):
            segments += [f"{tagged}\n", reference.codes, "\n"]
        segments.append(END)
    instruction = _words_of(prompt, "instruction")
    if instruction:
        segments += ["<|im_start|>DIRECTOR\n", instruction, END]
    return segments


_OPENINGS = {"fish_s2": fish_s2_opening, "step_audio_3": step_audio_3_opening}
_TEXT_ROLES = {"fish_s2": "user", "step_audio_3": "SCRIPT"}


def segments_by_turn(prompt: Prompt, prompt_format: str) -> list[list[Segment]]:
    """What is read before each turn's frames: first those of ``prompt.history``, the turn to say last.

    Raises:
        PromptError: a control token in a text, or an empty text.
    """
    turns = []
    read = _OPENINGS[prompt_format](prompt)
    for text in [*(said.text for said in prompt.history), prompt.text]:
        check_user_text(text, f"prompt {prompt.id}")
        turns.append([*read, f"<|im_start|>{_TEXT_ROLES[prompt_format]}\n", text, END, ANSWER])
        read = [END]
    return turns


def _tagged(prompt: Prompt) -> list[str]:
    """The references' texts, each with a speaker tag."""
    tagged = []
    for i, reference in enumerate(prompt.references):
        check_user_text(reference.text, f"prompt {prompt.id}, reference {i}")
        own_tag = _SPEAKER.match(reference.text)
        tagged.append(reference.text if own_tag else f"<|speaker:{i}|>{reference.text}")
    return tagged


def _words_of(prompt: Prompt, name: str) -> str | None:
    """A text of the prompt's meta, checked; None where there is none."""
    where = f"prompt {prompt.id}, meta.{name}"
    words = prompt.meta.get(name)
    if words is None:
        return None
    if not isinstance(words, str):
        raise PromptError(f"{where}: must be text")
    check_user_text(words, where)
    return words.strip()


def code_rows(codes: np.ndarray, config: DualARConfig) -> Tensor:
    """Generated codes ``[T, K]`` as model rows ``[1 + K, T]``: the semantic token, then the raw codes."""
    tensor = torch.as_tensor(codes, dtype=torch.long).T
    return torch.cat([tensor[:1] + config.semantic_start_token_id, tensor])


def heard_rows(codes: np.ndarray, config: DualARConfig) -> Tensor:
    """Codes ``[T, K]`` of audio to listen to as model rows ``[1 + K, T]`` (see `DualARConfig.feedback`)."""
    rows = code_rows(codes, config)
    if config.feedback == "first":
        rows[0] = cast(int, config.audio_pad_token_id)
    return rows


def turn_rows(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, config: DualARConfig) -> list[Tensor]:
    """Model rows ``[1 + K, T]`` of what is read before each turn's frames (see `segments_by_turn`).

    Raises:
        PromptError: a control token in a text, an empty text, or codes of another K.
    """
    return [
        _rows_of(segments, tokenizer, config, f"prompt {prompt.id}")
        for segments in segments_by_turn(prompt, config.prompt_format)
    ]


def prompt_rows(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, config: DualARConfig) -> Tensor:
    """Model rows ``[1 + K, T]`` of a prompt, history and all, ready for the first frame to sample.

    Raises what `turn_rows` does.
    """
    return join_turns(turn_rows(prompt, tokenizer, config), prompt, config)


def join_turns(reads: Sequence[Tensor], prompt: Prompt, config: DualARConfig) -> Tensor:
    """What is read before the turns of ``prompt.history`` and after them, with their frames in between.

    Raises:
        PromptError: codes of another K.
    """
    parts = [reads[0]]
    for said, read in zip(prompt.history, reads[1:], strict=True):
        _check_codes(said.codes, config, f"prompt {prompt.id}")
        parts += [code_rows(said.codes, config), read]
    return torch.cat(parts, 1)


def _rows_of(
    segments: Sequence[Segment], tokenizer: PreTrainedTokenizerBase, config: DualARConfig, where: str
) -> Tensor:
    """Tokenise each segment by itself and lay codes beside their tokens: ``[1 + K, T]``."""
    parts = []
    for segment in segments:
        if isinstance(segment, str):
            ids = torch.tensor(tokenizer.encode(segment, add_special_tokens=False), dtype=torch.long)
            parts.append(torch.cat([ids[None], ids.new_zeros(config.num_codebooks, len(ids))]))
            continue
        _check_codes(segment, config, where)
        parts.append(heard_rows(segment, config))
    return torch.cat(parts, 1)


def _check_codes(codes: np.ndarray, config: DualARConfig, where: str) -> None:
    if codes.ndim != 2 or codes.shape[1] != config.num_codebooks:
        raise PromptError(f"{where}: codes must be [T, {config.num_codebooks}], got {codes.shape}")
