"""How many parameters a policy and its adapter have, by its config; and the config of the published S2."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rl.policy.configuration import ARConfig, DualARConfig
from rl.schema import LoraConfig

BYTES = {"float32": 4, "bfloat16": 2}
"""Of one number, by ``model.dtype``."""


def published_s2() -> DualARConfig:
    """Fish Audio S2-Pro's config, as published: 4,561,852,416 parameters in 358 tensors."""
    layers: dict[str, Any] = {
        "dim": 2560,
        "intermediate_size": 9728,
        "n_head": 32,
        "n_local_heads": 8,
        "head_dim": 128,
    }
    return DualARConfig(
        text_config={
            **layers,
            "n_layer": 36,
            "vocab_size": 155_776,
            "attention_qk_norm": True,
            "max_seq_len": 32_768,
        },
        audio_decoder_config={
            **layers,
            "n_layer": 4,
            "vocab_size": 4096,
            "max_seq_len": 11,
            "text_dim": 2560,
            "num_codebooks": 10,
        },
        semantic_start_token_id=151_678,
        semantic_end_token_id=155_773,
        eos_token_id=151_645,
        pad_token_id=151_669,
        audio_pad_token_id=151_677,
    )


def layer_parameters(ar: ARConfig) -> int:
    """Of one block: fused q | k | v, output, three MLP matrices, two norms, and q/k norms where it has
    them."""
    attention = (2 * ar.n_head + 2 * ar.n_local_heads) * ar.head_dim * ar.dim
    norms = 2 * ar.dim + (2 * ar.head_dim if ar.attention_qk_norm else 0)
    return attention + 3 * ar.dim * ar.intermediate_size + norms


def stack_parameters(ar: ARConfig) -> int:
    """Of all blocks of an AR, which every position goes through."""
    return ar.n_layer * layer_parameters(ar)


def policy_parameters(config: DualARConfig) -> int:
    """Of the whole policy; the slow AR's output head is its embedding."""
    slow, fast = config.text_config, config.audio_decoder_config
    tables = slow.vocab_size * slow.dim + config.num_codebooks * fast.vocab_size * slow.dim
    heads = 2 * fast.vocab_size * fast.dim
    project = slow.dim * fast.dim + fast.dim if slow.dim != fast.dim else 0
    adaptor = config.adaptor_layers * (slow.dim + 3 * slow.dim * config.adaptor_size)
    norms = slow.dim + fast.dim
    return tables + heads + project + adaptor + norms + stack_parameters(slow) + stack_parameters(fast)


def adapted_ars(config: DualARConfig, ars: str) -> Iterator[ARConfig]:
    """The ARs that ``lora.ars`` names."""
    if ars in ("both", "slow"):
        yield config.text_config
    if ars in ("both", "fast"):
        yield config.audio_decoder_config


def adapter_parameters(config: DualARConfig, lora: LoraConfig) -> int:
    """A and B on the three MLP matrices of each adapted block: ``r * (inputs + outputs)`` each."""
    return sum(
        ar.n_layer * 3 * lora.r * (ar.dim + ar.intermediate_size) for ar in adapted_ars(config, lora.ars)
    )


def adapted_parameters(config: DualARConfig, ars: str) -> int:
    """Of the matrices that have an adapter, which a weight sync sends merged."""
    return sum(ar.n_layer * 3 * ar.dim * ar.intermediate_size for ar in adapted_ars(config, ars))


def kv_bytes(config: DualARConfig, dtype: str) -> int:
    """Of the slow AR's keys and values of one token, in all layers."""
    slow = config.text_config
    return slow.n_layer * 2 * slow.n_local_heads * slow.head_dim * BYTES[dtype]
