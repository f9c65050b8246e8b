"""The ``fish_s2`` prompt format: a prompt record becomes rows ``[1 + K, T]`` of token ids and codes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.errors import PromptError
from rl.policy.configuration import DualARConfig
from rollouts.types import Prompt

INSTRUCTION = "convert the provided text to speech"
_CONTROL = re.compile(r"<\|(?!speaker:\d+\|>)[^<>|]*\|>")
_SPEAKER = re.compile(r"<\|speaker:\d+\|>")


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


def fish_s2_segments(prompt: Prompt) -> list[str | np.ndarray]:
    """The prompt as segments to tokenise one by one; an array stands for reference codes ``[T, K]``."""
    check_user_text(prompt.text, f"prompt {prompt.id}")
    segments: list[str | np.ndarray] = ["<|im_start|>system\n"]
    if prompt.references:
        tagged = []
        for i, reference in enumerate(prompt.references):
            check_user_text(reference.text, f"prompt {prompt.id}, reference {i}")
            own_tag = _SPEAKER.match(reference.text)
            tagged.append(reference.text if own_tag else f"<|speaker:{i}|>{reference.text}")
        segments += [
            f"{INSTRUCTION} reference to the following:\n\nText:\n",
            "\n".join(tagged),
            "\n\nSpeech:\n",
        ]
        segments.append(np.concatenate([reference.codes for reference in prompt.references]))
    else:
        segments.append(INSTRUCTION)
    segments += ["<|im_end|>\n", "<|im_start|>user\n", prompt.text, "<|im_end|>\n"]
    segments.append("<|im_start|>assistant\n<|voice|>")
    return segments


def code_rows(codes: np.ndarray, config: DualARConfig) -> Tensor:
    """Codes ``[T, K]`` as model rows ``[1 + K, T]``: row 0 the semantic token, rows 1..K the raw codes."""
    tensor = torch.as_tensor(codes, dtype=torch.long).T
    return torch.cat([tensor[:1] + config.semantic_start_token_id, tensor])


def prompt_rows(prompt: Prompt, tokenizer: PreTrainedTokenizerBase, config: DualARConfig) -> Tensor:
    """Model rows ``[1 + K, T]`` of a prompt in the ``fish_s2`` format, ready for the first frame.

    Raises:
        PromptError: a control token in the text, an empty text, or reference codes of another K.
    """
    return rows_of(fish_s2_segments(prompt), tokenizer, config, f"prompt {prompt.id}")


def rows_of(
    segments: Sequence[str | np.ndarray], tokenizer: PreTrainedTokenizerBase, config: DualARConfig, where: str
) -> Tensor:
    """Tokenise each segment by itself and lay codes beside their semantic tokens: ``[1 + K, T]``."""
    parts = []
    for segment in segments:
        if isinstance(segment, str):
            ids = torch.tensor(tokenizer.encode(segment, add_special_tokens=False), dtype=torch.long)
            parts.append(torch.cat([ids[None], ids.new_zeros(config.num_codebooks, len(ids))]))
            continue
        if segment.ndim != 2 or segment.shape[1] != config.num_codebooks:
            raise PromptError(
                f"{where}: reference codes must be [T, {config.num_codebooks}], got {segment.shape}"
            )
        parts.append(code_rows(segment, config))
    return torch.cat(parts, 1)
