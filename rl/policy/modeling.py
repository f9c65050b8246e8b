"""The Dual-AR policy: a slow AR over frames, a fast AR over the codebooks of a frame.

Parameter names and numerics are those of the published S2 checkpoint. Inputs are rows ``[B, 1 + K, T]``:
row 0 holds token ids, rows 1..K the raw codes of audio positions (0 elsewhere). What the slow AR reads of the
codes is `DualARConfig.feedback`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import GenerationMixin, PreTrainedModel
from transformers.utils.generic import ModelOutput

from rl.policy.configuration import ARConfig, DualARConfig
from rl.policy.layers import Block, KVCache, Mask, Past, RMSNorm, ZeroLinear, adaptor, rope_table


def embed_rows(
    rows: Tensor, tokens: nn.Embedding, codebooks: nn.Embedding, adaptor: nn.Module, config: DualARConfig
) -> Tensor:
    """The slow AR's inputs ``[B, T, dim]``: ``E[id]``, but for positions that hold a frame's K codes.

    Those are the semantic tokens, at ``(E[id] + sum_k C_k[code_k]) / sqrt(K + 1)``; with feedback ``first``
    they are the audio pads, at ``adaptor(scale * sum_k C_k[code_k])``.
    """
    ids, codes = rows[:, 0], rows[:, 1:]
    embedded = tokens(ids)
    books = config.num_codebooks
    offsets = torch.arange(books, device=rows.device) * config.audio_decoder_config.vocab_size
    summed = codebooks(codes + offsets[:, None]).sum(1)
    if config.feedback == "first":
        scale = books**-0.5 if config.audio_scale is None else config.audio_scale
        heard = adaptor(summed * scale)
    else:
        heard = (embedded + summed) / math.sqrt(books + 1)
    return torch.where(config.is_heard(ids)[..., None], heard, embedded)


class _Stack(nn.Module):
    layers: nn.ModuleList
    norm: RMSNorm
    ar_config: ARConfig
    gradient_checkpointing = False

    def run(
        self, x: Tensor, positions: Tensor, mask: Mask = None, past: Sequence[Past] | None = None
    ) -> tuple[Tensor, KVCache]:
        """Normed hidden states of ``x`` ``[B, T, dim]`` at ``positions`` ``[B, T]`` or ``[T]``; the cache."""
        table = rope_table(positions, self.ar_config.head_dim, self.ar_config.rope_base)
        table = table[:, None] if positions.ndim == 2 else table
        cache: KVCache = []
        for i, layer in enumerate(self.layers):
            before = past[i] if past is not None else None
            if self.gradient_checkpointing and self.training:
                x, present = checkpoint(layer, x, table, mask, before, use_reentrant=False)
            else:
                x, present = layer(x, table, mask, before)
            cache.append(present)
        return self.norm(x), cache


class SlowAR(_Stack):
    """The text model: token embeddings (also its output head), blocks, final norm."""

    def __init__(self, config: DualARConfig) -> None:
        super().__init__()
        self.ar_config = config.text_config
        self.embeddings = nn.Embedding(self.ar_config.vocab_size, self.ar_config.dim)
        self.layers = nn.ModuleList(Block(self.ar_config) for _ in range(self.ar_config.n_layer))
        self.norm = RMSNorm(self.ar_config.dim, self.ar_config.norm_eps)


class TextModel(nn.Module):
    """Only a level of names in the published layout (``text_model.model.*``)."""

    def __init__(self, config: DualARConfig) -> None:
        super().__init__()
        self.model = SlowAR(config)


class FastAR(_Stack):
    """The audio decoder: what feeds the slow AR with codes, and the transformer over codebooks."""

    def __init__(self, config: DualARConfig) -> None:
        super().__init__()
        self.ar_config = config.audio_decoder_config
        size, dim, text_dim = self.ar_config.vocab_size, self.ar_config.dim, config.text_config.dim
        self.codebook_embeddings = nn.Embedding(size * config.num_codebooks, text_dim)
        self.adaptor = adaptor(config)
        self.project_in = nn.Linear(text_dim, dim) if dim != text_dim else None
        self.embeddings = nn.Embedding(size, dim)
        self.layers = nn.ModuleList(Block(self.ar_config) for _ in range(self.ar_config.n_layer))
        self.norm = RMSNorm(dim, self.ar_config.norm_eps)
        self.output = nn.Linear(dim, size, bias=False)

    def first(self, hidden: Tensor) -> Tensor:
        """The fast AR's input at position 0, from the slow AR's normed hidden ``[..., text_dim]``."""
        return self.project_in(hidden) if self.project_in is not None else hidden


@dataclass
class DualAROutput(ModelOutput):
    """``hidden``: normed slow hidden states ``[B, T, dim]``; ``past``: the slow AR's cache."""

    hidden: Tensor | None = None
    past: KVCache | None = None


class DualARForCausalLM(PreTrainedModel, GenerationMixin):
    """A Dual-AR speech LM (S2 layout)."""

    config_class = DualARConfig
    config: DualARConfig
    base_model_prefix = ""
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _no_split_modules = ["Block"]  # noqa: RUF012  (an instance variable of the base class)

    def __init__(self, config: DualARConfig) -> None:
        super().__init__(config)
        config.check()
        self.text_model = TextModel(config)
        self.audio_decoder = FastAR(config)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            std = 0.0 if isinstance(module, ZeroLinear) else self.config.text_config.initializer_range
            module.weight.data.normal_(0.0, std)
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.data.zero_()

    def get_input_embeddings(self) -> nn.Module:
        return self.text_model.model.embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.text_model.model.embeddings = cast(nn.Embedding, value)

    def embed(self, rows: Tensor) -> Tensor:
        """See :func:`embed_rows`."""
        tokens, audio = self.text_model.model.embeddings, self.audio_decoder
        return embed_rows(rows, tokens, audio.codebook_embeddings, audio.adaptor, self.config)

    def forward(
        self,
        rows: Tensor,
        positions: Tensor | None = None,
        mask: Mask = None,
        past: Sequence[Past] | None = None,
        **_: Any,
    ) -> DualAROutput:
        """The slow AR over ``rows`` ``[B, 1 + K, T]`` (see :meth:`_Stack.run` for the rest).

        ``positions``: from 0 on where None, which needs a ``past`` of None; else raises ValueError.
        """
        if positions is None:
            if past is not None:
                raise ValueError("positions: None, but rows that follow a past don't begin at 0; give them")
            positions = torch.arange(rows.shape[2], device=rows.device)
        hidden, cache = self.text_model.model.run(self.embed(rows), positions, mask, past)
        return DualAROutput(hidden=hidden, past=cache)

    def slow_logits(self, hidden: Tensor, ids: Tensor | None = None) -> Tensor:
        """Logits ``[..., V]`` of the tied head, or of its rows ``ids`` only."""
        return hidden @ self.slow_head(ids).T

    def slow_head(self, ids: Tensor | None = None) -> Tensor:
        """The rows ``[V, dim]`` of the tied head, or its rows ``ids`` only."""
        head = self.text_model.model.embeddings.weight
        return head if ids is None else head[ids]

    def fast_logits(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """Teacher-forced logits of codes 1..K-1: ``[N, K - 1, codebook_size]`` (see `fast_hidden`)."""
        return self.audio_decoder.output(self.fast_hidden(hidden, codes))

    def fast_hidden(self, hidden: Tensor, codes: Tensor) -> Tensor:
        """What predicts codes 1..K-1: the fast AR's normed hidden states ``[N, K - 1, dim]``, in one pass.

        ``hidden``: the slow AR's normed hidden state that predicted each frame, ``[N, dim]``; ``codes``:
        ``[N, K]`` (the last column is not read).
        """
        fast = self.audio_decoder
        inputs = torch.cat([fast.first(hidden)[:, None], fast.embeddings(codes[:, :-1])], 1)
        out, _ = fast.run(inputs, torch.arange(inputs.shape[1], device=hidden.device))
        return out[:, 1:]
