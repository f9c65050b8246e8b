"""The transformer that both ARs are made of, with the published checkpoint's parameter names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl.policy.configuration import ARConfig, DualARConfig


@dataclass(frozen=True)
class Room:
    """A layer's keys and values ``[B, kv_heads, room, head_dim]``, made beforehand and filled in place.

    ``place``: where new ones go: all rows' from there on, or each row's single one at its own ``[B]``.
    ``end``: the first column that no row has filled yet.
    """

    keys: Tensor
    values: Tensor
    place: int | Tensor
    end: int

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write the new ones; all up to ``end``, which are views."""
        for held, new in ((self.keys, keys), (self.values, values)):
            if isinstance(self.place, int):
                held[:, :, self.place : self.end] = new
            else:
                held[torch.arange(len(new), device=new.device), :, self.place] = new[:, :, 0]
        return self.keys[:, :, : self.end], self.values[:, :, : self.end]


Past = tuple[Tensor, Tensor] | Room
"""A layer's earlier keys and values, ``[B, kv_heads, T, head_dim]`` each, or the room that holds them."""
KVCache = list[tuple[Tensor, Tensor]]  # per layer: keys and values [B, kv_heads, T, head_dim]


@dataclass(frozen=True)
class Packing:
    """Pieces of sequences, one after the other in a single row ``[1, N]``.

    ``lengths``: of the pieces; they add up to N. ``follows``: for each piece the place of the one that it
    goes on from, or None where it begins its sequence. What many pieces go on from is computed once.
    """

    lengths: tuple[int, ...]
    follows: tuple[int | None, ...]


Mask = Tensor | Packing | None
"""What attends to what: boolean ``[B, 1, T, past + T]``, True where attended; or the sequences of a packed
row, each causal; or None, all causal."""


def rope_table(positions: Tensor, head_dim: int, base: float) -> Tensor:
    """cos and sin of the angles, ``[..., head_dim / 2, 2]``, rounded to bfloat16 as published."""
    exponents = torch.arange(0, head_dim, 2, device=positions.device, dtype=torch.float32) / head_dim
    angles = positions.float()[..., None] / base**exponents
    return torch.stack([angles.cos(), angles.sin()], -1).bfloat16().float()


def rotate(x: Tensor, table: Tensor) -> Tensor:
    """Rotate adjacent pairs (2i, 2i + 1) of ``x`` ``[B, heads, T, head_dim]`` in fp32, then cast back.

    As products of complex numbers that is one pass over ``x``; a compiler, which has none, fuses real ones.
    """
    pairs = x.float().unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():
        cos, sin = table[..., 0], table[..., 1]
        even, odd = pairs[..., 0], pairs[..., 1]
        rotated = torch.stack([even * cos - odd * sin, odd * cos + even * sin], -1)
    else:
        rotated = torch.view_as_real(torch.view_as_complex(pairs) * torch.view_as_complex(table))
    return rotated.flatten(-2).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask) -> Tensor:
    """Attention ``[B, heads, T, head_dim]`` of ``q`` over as many heads of ``k`` and ``v``, or fewer."""
    if isinstance(mask, Packing):
        return _attend_packed(q, k, v, mask)
    causal = mask is None and q.shape[2] > 1
    gqa = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=gqa)


def _attend_packed(q: Tensor, k: Tensor, v: Tensor, packing: Packing) -> Tensor:
    """What a piece goes on from brings its queries again, their results unused: the fast kernels are those of
    causal attention without a mask, and beside the projections it costs little."""
    pieces = list(zip(*(part.split(packing.lengths, 2) for part in (q, k, v)), strict=True))
    attended = []
    for piece, before in zip(pieces, packing.follows, strict=True):
        if before is None:
            attended.append(attend(piece[0], piece[1], piece[2], None))
        else:
            q, k, v = (torch.cat(parts, 2) for parts in zip(pieces[before], piece, strict=True))
            attended.append(attend(q, k, v, None)[:, :, packing.lengths[before] :])
    return torch.cat(attended, 2)


class RMSNorm(nn.Module):
    """Statistics in fp32, cast back, then times the weight."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class Attention(nn.Module):
    """Grouped-query attention with fused, head-major q | k | v rows and optional per-head q/k norm."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.n_head, config.n_local_heads, config.head_dim
        self.wqkv = nn.Linear(config.dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=False)
        self.wo = nn.Linear(self.heads * self.head_dim, config.dim, bias=False)
        self.qk_norm = config.attention_qk_norm
        if self.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=config.norm_eps)

    def forward(
        self, x: Tensor, table: Tensor, mask: Mask, past: Past | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        batch, length, _ = x.shape
        split = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.wqkv(x).view(batch, length, sum(split), self.head_dim).split(split, dim=2)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        q, k = rotate(q, table), rotate(k, table)
        if isinstance(past, Room):
            k, v = past.extend(k, v)
        elif past is not None:
            k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return self.wo(attend(q, k, v, mask).transpose(1, 2).flatten(2)), (k, v)


class FeedForward(nn.Module):
    """SwiGLU: ``w2(silu(w1 x) * w3 x)``."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.w1 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.w3 = nn.Linear(config.dim, config.intermediate_size, bias=False)
        self.w2 = nn.Linear(config.intermediate_size, config.dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = FeedForward(config)
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(
        self, x: Tensor, table: Tensor, mask: Mask, past: Past | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attended, present = self.attention(self.attention_norm(x), table, mask, past)
        x = x + attended
        return x + self.feed_forward(self.ffn_norm(x)), present


class ZeroLinear(nn.Linear):
    """A projection without bias that is zero in a new model."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)


class AdaptorBlock(nn.Module):
    """Token-wise ``x + w2(silu(w1 n) * w3 n)`` with ``n = norm(x)``: the identity in a new model."""

    def __init__(self, dim: int, size: int, eps: float) -> None:
        super().__init__()
        self.norm = RMSNorm(dim, eps)
        self.w1 = nn.Linear(dim, size, bias=False)
        self.w3 = nn.Linear(dim, size, bias=False)
        self.w2 = ZeroLinear(size, dim)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.norm(x)
        return x + self.w2(F.silu(self.w1(normed)) * self.w3(normed))


def adaptor(config: DualARConfig) -> nn.Sequential:
    """What turns the sum of a heard frame's code embeddings into the slow AR's input."""
    dim, eps = config.text_config.dim, config.text_config.norm_eps
    return nn.Sequential(*(AdaptorBlock(dim, config.adaptor_size, eps) for _ in range(config.adaptor_layers)))
