"""When each word of a given text is spoken, by Whisper's cross-attention, as in openai-whisper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from whisper.audio import TOKENS_PER_SECOND
from whisper.model import disable_sdpa
from whisper.timing import dtw, median_filter

from rewards.audio import SAMPLE_RATE
from rewards.models.whisper_asr import WhisperASR, teacher_forced
from rewards.words import Word

FILTER_WIDTH = 7
"""Of the median filter over time, in frames of 20 ms: openai-whisper's."""


@torch.inference_mode()
def align(
    asr: WhisperASR, features: torch.Tensor, texts: Sequence[str], samples: Sequence[int]
) -> tuple[list[np.ndarray], list[list[Word]]]:
    """What `token_logprobs` gives, and the words of ``texts[b]`` with their times, from the same pass.

    ``samples[b]`` is the clip's length at 16 kHz, without the padding. The last word's log-probabilities end
    with the end token's. Words that aren't there get times nevertheless, and low log-probabilities.
    """
    words = [text.split() for text in texts]
    pieces = [[asr.tokenizer.encode(f" {word}") for word in row] for row in words]
    tokens = [[token for piece in row for token in piece] for row in pieces]
    attention: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, outputs: Any) -> None:
        attention.append(outputs[1])

    hooks = [block.cross_attn.register_forward_hook(keep) for block in asr.model.decoder.blocks]
    try:
        with disable_sdpa():  # the fused attention doesn't give its weights
            logps = teacher_forced(asr, features, tokens)
    finally:
        for hook in hooks:
            hook.remove()
    heads = asr.model.alignment_heads.indices().T.tolist()
    found = []
    for b, row in enumerate(pieces):
        scores = torch.stack([attention[layer][b, head] for layer, head in heads])
        frames = max(1, samples[b] * TOKENS_PER_SECOND // SAMPLE_RATE)
        starts = _starts(scores[:, : len(asr.prefix) + len(tokens[b]), :frames], len(asr.prefix) - 1)
        found.append(_words(words[b], [len(piece) for piece in row], starts, logps[b]))
    return logps, found


def _starts(scores: torch.Tensor, first: int) -> np.ndarray:
    """When each token starts, in seconds, the end token last: ``[n + 1]``.

    ``scores`` ``[heads, tokens, frames]`` are attention scores before the softmax; the row ``first`` is the
    query that predicts the first token of the text.
    """
    weights = scores.float().softmax(dim=-1)
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    smooth = median_filter((weights - mean) / deviation.clamp_min(1e-9), FILTER_WIDTH)
    rows, times = dtw(-smooth.mean(dim=0)[first:])
    return np.asarray(times[np.flatnonzero(np.diff(rows, prepend=-1))] / TOKENS_PER_SECOND)


def _words(words: list[str], sizes: list[int], starts: np.ndarray, logps: np.ndarray) -> list[Word]:
    """Words of ``sizes`` tokens each; ``starts`` and ``logps`` have one entry more, the end token's."""
    edges = np.cumsum([0, *sizes])
    last = len(words) - 1
    return [
        Word(
            word,
            float(starts[edges[i]]),
            float(starts[edges[i + 1]]),
            tuple(logps[edges[i] : edges[i + 1] + (i == last)].tolist()),
        )
        for i, word in enumerate(words)
    ]
