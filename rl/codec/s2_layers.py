"""What S2's codec is made of, under the published checkpoint's parameter names. All of it is causal."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from rl.policy.configuration import ARConfig
from rl.policy.layers import Block, Mask, Past, RMSNorm, rope_table


class CausalConv(nn.Module):
    """``[B, C, n]`` to ``[B, C', n / stride]``; ``n`` must be divisible by ``stride``."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        dilation: int = 1,
        groups: int = 1,
        normed: bool = True,
    ) -> None:
        super().__init__()
        conv = nn.Conv1d(inputs, outputs, kernel, stride=stride, dilation=dilation, groups=groups)
        self.conv = weight_norm(conv) if normed else conv
        self.stride = stride
        self.reach = (kernel - 1) * dilation + 1 - stride

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(F.pad(x, (self.reach, 0)))


class CausalTransposedConv(nn.Module):
    """``[B, C, n]`` to ``[B, C', n * stride]``; of the longer result the end is cut."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int, normed: bool = True) -> None:
        super().__init__()
        conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.conv = weight_norm(conv) if normed else conv
        self.stride = stride
        self.reach = (kernel - 1) // stride  # in inputs

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)[..., : x.shape[-1] * self.stride]


def left_context(*stages: nn.Module) -> int:
    """How many inputs before its own an output of ``stages``, run in this order, may depend on.

    Counts `CausalConv` and `CausalTransposedConv`, in the order in which they were registered. An output has
    as many inputs of its own as the strides of the former multiply to.
    """
    reach = 0
    for module in reversed([module for stage in stages for module in stage.modules()]):
        if isinstance(module, CausalConv):
            reach = reach * module.stride + module.reach
        elif isinstance(module, CausalTransposedConv):
            reach = -(-reach // module.stride) + module.reach
    return reach


class Snake(nn.Module):
    """``x + sin(alpha x)^2 / alpha`` (Ziyin et al. 2020), an alpha per channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(1, channels, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.alpha * x).square() / (self.alpha + 1e-9)


class ResidualUnit(nn.Module):
    """A dilated and a pointwise convolution, each after a Snake, beside the identity."""

    def __init__(self, channels: int, dilation: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            Snake(channels),
            CausalConv(channels, channels, 7, dilation=dilation),
            Snake(channels),
            CausalConv(channels, channels, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.block(x)


class Branch(nn.Module):
    """A sequence; only a level of names in the published layout (``block``)."""

    def __init__(self, *stages: nn.Module) -> None:
        super().__init__()
        self.block = nn.Sequential(*stages)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x)


class ConvNeXt(nn.Module):
    """Depthwise convolution, layer norm, pointwise MLP, scale, beside the identity (Liu et al. 2022)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))
        self.dwconv = CausalConv(width, width, 7, groups=width, normed=False)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dwconv(x).transpose(1, 2))
        y = self.gamma * self.pwconv2(F.gelu(self.pwconv1(y)))
        return x + y.transpose(1, 2)


class LayerScale(nn.Module):
    """A factor per channel of a residual branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class ScaledBlock(Block):
    """The policy's block, its two branches scaled by channel."""

    def __init__(self, config: ARConfig) -> None:
        super().__init__(config)
        self.attention_layer_scale = LayerScale(config.dim)
        self.ffn_layer_scale = LayerScale(config.dim)

    def forward(
        self, x: Tensor, table: Tensor, mask: Mask, past: Past | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        attended, present = self.attention(self.attention_norm(x), table, mask, past)
        x = x + self.attention_layer_scale(attended)
        return x + self.ffn_layer_scale(self.feed_forward(self.ffn_norm(x))), present


class WindowTransformer(nn.Module):
    """Over ``[B, C, T]``: a position attends to the ``window`` last ones, its own included.

    It runs ``window`` positions at a time, with the keys and values of those before: memory grows with T,
    not with its square.
    """

    def __init__(self, config: ARConfig, window: int) -> None:
        super().__init__()
        self.config, self.window = config, window
        self.layers = nn.ModuleList(ScaledBlock(config) for _ in range(config.n_layer))
        self.norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        past: list[tuple[Tensor, Tensor] | None] = [None] * len(self.layers)
        parts = []
        for start in range(0, x.shape[-1], self.window):
            part = x[..., start : start + self.window].transpose(1, 2)
            queries = torch.arange(start, start + part.shape[1], device=x.device)
            keys = torch.arange(max(0, start - self.window + 1), start + part.shape[1], device=x.device)
            behind = queries[:, None] - keys
            mask = (behind >= 0) & (behind < self.window)
            table = rope_table(queries, self.config.head_dim, self.config.rope_base)
            for i, layer in enumerate(self.layers):
                part, (k, v) = layer(part, table, mask, past[i])
                kept = slice(max(0, k.shape[2] - self.window + 1), None)
                past[i] = k[:, :, kept], v[:, :, kept]
            parts.append(self.norm(part).transpose(1, 2))
        return torch.cat(parts, -1)


class Projection(nn.Module):
    """A weight-normed pointwise convolution whose parameters bear the names of an older PyTorch."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.ones(outputs, 1, 1))
        self.weight_v = nn.Parameter(torch.randn(outputs, inputs, 1))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight_v * (self.weight_g / self.weight_v.norm(dim=(1, 2), keepdim=True))
        return F.conv1d(x, weight, self.bias)


class Codebook(nn.Module):
    """Vector quantisation by cosine in a space of few dimensions (Kumar et al. 2023)."""

    def __init__(self, width: int, size: int, dim: int) -> None:
        super().__init__()
        self.in_proj, self.out_proj = Projection(width, dim), Projection(dim, width)
        self.codebook = nn.Embedding(size, dim)

    def encode(self, x: Tensor) -> Tensor:
        """``[B, C, T]`` to the nearest codes ``[B, T]``."""
        directions = F.normalize(self.codebook.weight)
        return (F.normalize(self.in_proj(x)).transpose(1, 2) @ directions.T).argmax(-1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes ``[B, T]`` to ``[B, C, T]``."""
        return self.out_proj(self.codebook(codes).transpose(1, 2))


class ResidualCodebooks(nn.Module):
    """Codebooks that each quantise what those before have left."""

    def __init__(self, books: int, width: int, size: int, dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(Codebook(width, size, dim) for _ in range(books))

    @property
    def books(self) -> list[Codebook]:
        return [cast(Codebook, book) for book in self.quantizers]

    def encode(self, x: Tensor) -> Tensor:
        """``[B, C, T]`` to codes ``[B, T, K]``."""
        columns = []
        for book in self.books:
            columns.append(book.encode(x))
            x = x - book.decode(columns[-1])
        return torch.stack(columns, -1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes ``[B, T, K]`` to ``[B, C, T]``."""
        parts = [book.decode(codes[..., k]) for k, book in enumerate(self.books)]
        return torch.stack(parts).sum(0)
