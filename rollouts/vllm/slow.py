"""The slow AR of vLLM layers: tensor-parallel projections, paged attention, the policy's norms and RoPE."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from vllm.compilation.decorators import support_torch_compile
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import (
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)

from rl.policy.configuration import ARConfig
from rl.policy.layers import RMSNorm, rope_table, rotate


class PlainLinear(UnquantizedLinearMethod):
    """Leaves the weight as it was loaded, so that a weight sync can copy into it.

    vLLM's own method repacks weights on CPU, and a compiled graph keeps the packed copy.
    """

    def process_weights_after_loading(self, layer: LinearBase) -> None:
        """Nothing: the weight stays as it is."""

    def apply(self, layer: LinearBase, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x W^T`` (no layer here has a bias)."""
        return F.linear(x, layer.weight, bias)


def plain(layer: LinearBase) -> LinearBase:
    """``layer`` with its weight left alone after loading."""
    layer.quant_method = PlainLinear()
    return layer


class SlowAttention(nn.Module):
    """Grouped-query attention over vLLM's paged cache; ``wqkv`` is fused on disk as well."""

    def __init__(self, config: ARConfig, cache_config: CacheConfig, prefix: str) -> None:
        super().__init__()
        ranks = get_tensor_model_parallel_world_size()
        self.head_dim = config.head_dim
        self.heads, self.kv_heads = config.n_head // ranks, max(1, config.n_local_heads // ranks)
        self.wqkv = plain(
            QKVParallelLinear(
                config.dim,
                config.head_dim,
                config.n_head,
                config.n_local_heads,
                bias=False,
                return_bias=False,
                prefix=f"{prefix}.wqkv",
            )
        )
        self.wo = plain(
            RowParallelLinear(
                config.n_head * config.head_dim,
                config.dim,
                bias=False,
                return_bias=False,
                prefix=f"{prefix}.wo",
            )
        )
        self.qk_norm = config.attention_qk_norm
        if self.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
        self.attn = Attention(
            self.heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=self.kv_heads,
            cache_config=cache_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        """``x`` ``[T, dim]``, ``table`` ``[T, 1, head_dim / 2, 2]``."""
        split = [self.heads, self.kv_heads, self.kv_heads]
        q, k, v = self.wqkv(x).view(len(x), sum(split), self.head_dim).split(split, dim=1)
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, table), rotate(k, table)
        return self.wo(self.attn(q.flatten(1), k.flatten(1), v.flatten(1)))


class SlowFeedForward(nn.Module):
    """SwiGLU; w1 and w3 are the two halves of one matrix."""

    def __init__(self, config: ARConfig, prefix: str) -> None:
        super().__init__()
        self.w13 = plain(
            MergedColumnParallelLinear(
                config.dim,
                [config.intermediate_size] * 2,
                bias=False,
                return_bias=False,
                prefix=f"{prefix}.w13",
            )
        )
        self.w2 = plain(
            RowParallelLinear(
                config.intermediate_size, config.dim, bias=False, return_bias=False, prefix=f"{prefix}.w2"
            )
        )

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w13(x).chunk(2, -1)
        return self.w2(F.silu(gate) * up)


class SlowBlock(nn.Module):
    """Pre-norm attention and feed-forward."""

    def __init__(self, config: ARConfig, cache_config: CacheConfig, prefix: str) -> None:
        super().__init__()
        self.attention = SlowAttention(config, cache_config, f"{prefix}.attention")
        self.feed_forward = SlowFeedForward(config, f"{prefix}.feed_forward")
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), table)
        return x + self.feed_forward(self.ffn_norm(x))


@support_torch_compile(dynamic_arg_dims={"positions": 0, "inputs_embeds": 0})
class SlowAR(nn.Module):
    """The text model. The embedding, which is the output head as well, is whole on every rank."""

    rope: Tensor

    def __init__(self, *, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        config: ARConfig = vllm_config.model_config.hf_config.text_config
        self.embeddings = nn.Embedding(config.vocab_size, config.dim)
        self.layers = nn.ModuleList(
            SlowBlock(config, vllm_config.cache_config, f"{prefix}.layers.{i}") for i in range(config.n_layer)
        )
        self.norm = RMSNorm(config.dim, config.norm_eps)
        # made once and eagerly: its entries are rounded to bfloat16, where the last bit of a cosine counts
        positions = torch.arange(vllm_config.model_config.max_model_len)
        table = rope_table(positions, config.head_dim, config.rope_base)
        self.register_buffer("rope", table[:, None], persistent=False)

    def forward(self, positions: Tensor, inputs_embeds: Tensor) -> Tensor:
        """Normed hidden states ``[T, dim]`` of ``inputs_embeds`` ``[T, dim]`` at ``positions`` ``[T]``."""
        x, table = inputs_embeds, self.rope[positions]
        for layer in self.layers:
            x = layer(x, table)
        return self.norm(x)
