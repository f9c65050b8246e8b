"""The adapter sits on the MLPs of both ARs only, and its merged weights are what the learner computes."""

import copy
import math
from pathlib import Path

import pytest
import torch
from peft import PeftModel

from rl.policy.loading import load_policy
from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter, merged_weights

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"


@pytest.fixture
def base() -> DualARForCausalLM:
    return load_policy(str(GOLDEN))[0]


def _stir(model: PeftModel) -> None:
    """Give B values, as training would."""
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.05


def test_only_the_mlps_of_both_ars_are_trained(base: DualARForCausalLM) -> None:
    layers = base.config.text_config.n_layer + base.config.audio_decoder_config.n_layer
    model = add_adapter(base, LoraConfig(r=16, alpha=64.0), seed=0)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert len(trained) == layers * 3 * 2
    assert all(".feed_forward.w" in name and "lora_" in name for name in trained)
    assert any("text_model" in name for name in trained)
    assert any("audio_decoder" in name for name in trained)
    scalings = {m.scaling["default"] for m in model.modules() if hasattr(m, "scaling")}
    assert scalings == {16.0}


def test_merged_weights_compute_what_the_adapter_computes(base: DualARForCausalLM) -> None:
    plain = copy.deepcopy(base)
    before = {name: p.clone() for name, p in plain.named_parameters()}
    model = add_adapter(base, LoraConfig(r=4, alpha=8.0), seed=0)
    _stir(model)
    merged = merged_weights(model)
    assert set(merged) == {name for name in before if ".feed_forward.w" in name}
    rows = torch.zeros(1, 1 + base.config.num_codebooks, 5, dtype=torch.long)
    rows[0, 0] = torch.arange(5)
    old = plain(rows).hidden
    plain.load_state_dict(merged, strict=False)
    torch.testing.assert_close(plain(rows).hidden, model.get_base_model()(rows).hidden, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(plain(rows).hidden, old, atol=1e-3)


def test_merging_does_not_touch_a_bfloat16_base(base: DualARForCausalLM) -> None:
    model = add_adapter(base.to(torch.bfloat16), LoraConfig(r=4, alpha=8.0), seed=0)
    _stir(model)
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}
    first = merged_weights(model)
    second = merged_weights(model)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            assert torch.equal(parameter, frozen[name])
    for name, tensor in first.items():
        assert tensor.dtype == torch.bfloat16
        assert torch.equal(tensor, second[name])


def test_the_adapter_follows_its_seed_and_leaves_the_global_generator_alone(base: DualARForCausalLM) -> None:
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    models = [add_adapter(copy.deepcopy(base), LoraConfig(), seed) for seed in (3, 3, 4)]
    assert torch.equal(torch.rand(1), expected)
    drawn = [next(p for name, p in m.named_parameters() if "lora_A" in name) for m in models]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert math.isfinite(drawn[0].abs().max().item())
