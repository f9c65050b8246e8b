"""The fast AR as a sampler runs it: all rows of a step at once, fused projections, one static cache."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl.policy.configuration import ARConfig, DualARConfig
from rl.policy.layers import RMSNorm, adaptor, rope_table, rotate
from rl.policy.likelihood import fast_log_softmax
from rollouts.torch_engine import draw


class FusedFeedForward(nn.Module):
    """SwiGLU whose two input projections are one matrix: w1's rows, then w3's."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.w13 = nn.Linear(config.dim, 2 * config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(F.silu(gate) * up)


class CachedAttention(nn.Module):
    """The policy's attention, writing into a preallocated cache."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_head, config.n_local_heads, config.head_dim
        self.wqkv = nn.Linear(config.dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(self.heads * self.head_dim, config.dim, bias=False)
        self.qk_norm = config.attention_qk_norm
        if self.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)

    def forward(self, x: Tensor, table: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
        """``x`` ``[N, q, dim]`` at positions ``start ..``; ``keys``, ``values`` ``[N, kv_heads, K, d]``."""
        rows, length, _ = x.shape
        projected = self.wqkv(x).view(rows, length, -1, self.head_dim).transpose(1, 2)
        qk, v = projected.split([self.heads + self.kv_heads, self.kv_heads], dim=1)
        if self.qk_norm:
            q, k = qk.split([self.heads, self.kv_heads], dim=1)
            qk = torch.cat([self.q_norm(q), self.k_norm(k)], 1)
        q, k = rotate(qk, table).split([self.heads, self.kv_heads], dim=1)
        end = start + length
        keys[:, :, start:end], values[:, :, start:end] = k, v
        out = F.scaled_dot_product_attention(
            q,
            keys[:, :, :end],
            values[:, :, :end],
            is_causal=length > 1,
            enable_gqa=self.heads != self.kv_heads,
        )
        return self.wo(out.transpose(1, 2).flatten(2))


class FastBlock(nn.Module):
    """Pre-norm attention and feed-forward. Of the ``top`` one only the last position is read."""

    def __init__(self, config: ARConfig, top: bool) -> None:
        super().__init__()
        self.top = top
        self.attention = CachedAttention(config)
        self.feed_forward = FusedFeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, table: Tensor, start: int, keys: Tensor, values: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table, start, keys, values)
        x = x[:, -1:] if self.top else x
        return x + self.feed_forward(self.ffn_norm(x))


class FastDecoder(nn.Module):
    """The audio decoder, with the parameter names of the published layout except ``w13`` for w1 and w3.

    It also holds what feeds the slow AR with codes, as the published ``audio_decoder`` does.
    """

    rope: Tensor

    def __init__(self, config: DualARConfig) -> None:
        super().__init__()
        self.config, own = config, config.audio_decoder_config
        text_dim = config.text_config.dim
        self.codebook_embeddings = nn.Embedding(own.vocab_size * config.num_codebooks, text_dim)
        self.adaptor = adaptor(config)
        if own.dim != text_dim:
            self.project_in: nn.Module = nn.Linear(text_dim, own.dim)
        else:
            self.project_in = nn.Identity()
        self.embeddings = nn.Embedding(own.vocab_size, own.dim)
        self.layers = nn.ModuleList(FastBlock(own, i == own.n_layer - 1) for i in range(own.n_layer))
        self.norm = RMSNorm(own.dim, own.norm_eps)
        self.output = nn.Linear(own.dim, own.vocab_size, bias=False)
        table = rope_table(torch.arange(config.num_codebooks), own.head_dim, own.rope_base)
        self.register_buffer("rope", table, persistent=False)

    def forward(
        self, hidden: Tensor, semantic: Tensor, noise: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Codes 1..K-1 of one frame per row and their log-probs, ``[N, K - 1]`` each.

        ``hidden`` ``[N, text_dim]``: the slow AR's normed hidden state; ``semantic`` ``[N]``: its code;
        ``noise`` ``[N, K]``: uniforms, column k for code k (column 0 isn't read). Positions 0 and 1, whose
        inputs are known, go through the layers together.
        """
        own, books = self.config.audio_decoder_config, self.config.num_codebooks
        shape = (own.n_layer, 2, len(hidden), own.n_local_heads, books, own.head_dim)
        cache = hidden.new_empty(shape)
        x = torch.stack([self.project_in(hidden), self.embeddings(semantic)], 1)
        codes, logprobs = [], []
        for k in range(1, books):
            start = k + 1 - x.shape[1]
            table = self.rope[start : k + 1]
            for layer, (keys, values) in zip(self.layers, cache, strict=True):
                x = layer(x, table, start, keys, values)
            logits = self.output(self.norm(x[:, -1]))
            code, logprob = draw(fast_log_softmax(logits, self.config, temperature), noise[:, k])
            codes.append(code)
            logprobs.append(logprob)
            x = self.embeddings(code)[:, None]
        return torch.stack(codes, 1), torch.stack(logprobs, 1)
