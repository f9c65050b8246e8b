"""Parameters counted by hand, by formula, and on the real classes."""

import pytest
import torch

from rl.arithmetic.shapes import (
    adapted_parameters,
    adapter_parameters,
    kv_bytes,
    layer_parameters,
    policy_parameters,
    published_s2,
)
from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig

S2 = published_s2()
STEP_AUDIO = DualARConfig(
    text_config={
        "n_layer": 3, "dim": 64, "intermediate_size": 160, "n_head": 4, "n_local_heads": 2, "head_dim": 32,
        "vocab_size": 700, "attention_qk_norm": True,
    },
    audio_decoder_config={
        "n_layer": 2, "dim": 48, "intermediate_size": 96, "n_head": 2, "n_local_heads": 1, "head_dim": 32,
        "vocab_size": 256, "text_dim": 64, "num_codebooks": 8,
    },
    semantic_start_token_id=400, semantic_end_token_id=655, eos_token_id=1, pad_token_id=0,
    audio_pad_token_id=2, feedback="first", adaptor_layers=2, adaptor_size=80,
)  # fmt: skip


def on_meta(config: DualARConfig) -> DualARForCausalLM:
    with torch.device("meta"):
        return DualARForCausalLM(config)


def test_the_published_s2_has_its_parameters_and_tensors() -> None:
    parameters = dict(on_meta(S2).named_parameters())
    assert policy_parameters(S2) == sum(p.numel() for p in parameters.values()) == 4_561_852_416
    assert len(parameters) == 358


def test_a_layer_by_hand() -> None:
    # wqkv 6144 x 2560, wo 2560 x 4096, three of 2560 x 9728, two norms of 2560, q and k norms of 128
    assert layer_parameters(S2.text_config) == 15_728_640 + 10_485_760 + 3 * 24_903_680 + 5_120 + 256
    assert layer_parameters(S2.audio_decoder_config) == 100_930_560


def test_a_policy_with_adaptor_and_two_widths() -> None:
    assert policy_parameters(STEP_AUDIO) == sum(p.numel() for p in on_meta(STEP_AUDIO).parameters())


@pytest.mark.parametrize(("ars", "layers"), [("both", 40), ("slow", 36), ("fast", 4)])
def test_the_adapter_by_hand(ars: str, layers: int) -> None:
    # w1, w3: 16 x (2560 + 9728); w2: 16 x (9728 + 2560)
    assert adapter_parameters(S2, LoraConfig(r=16, ars=ars)) == layers * 3 * 196_608
    assert adapted_parameters(S2, ars) == layers * 74_711_040


def test_the_cache_by_hand() -> None:
    # 36 layers, keys and values, 8 heads of 128
    assert kv_bytes(S2, "bfloat16") == 36 * 2 * 8 * 128 * 2 == 147_456
    assert kv_bytes(S2, "float32") == 294_912
