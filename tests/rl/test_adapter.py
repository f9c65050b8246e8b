"""The adapter sits on the MLPs of both ARs only, and its merged weights are what the learner computes."""

import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from rl.errors import CheckpointError, ConfigError
from rl.policy.loading import load_policy
from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter, base_of, merged_weights, write_base

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


@pytest.mark.parametrize(("ars", "other"), [("slow", "audio_decoder"), ("fast", "text_model")])
def test_one_ar_alone(base: DualARForCausalLM, ars: str, other: str) -> None:
    model = add_adapter(base, LoraConfig(r=4, ars=ars), seed=0)
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    part = base.config.text_config if ars == "slow" else base.config.audio_decoder_config
    assert len(trained) == part.n_layer * 3 * 2
    assert not any(other in name for name in trained)


@pytest.fixture
def saved(base: DualARForCausalLM, tmp_path: Path) -> Path:
    """An adapter of the fast AR, with values, and what it was saved of."""
    model = add_adapter(copy.deepcopy(base), LoraConfig(r=4, alpha=8.0, ars="fast"), seed=0)
    _stir(model)
    model.save_pretrained(tmp_path / "adapter")
    write_base(tmp_path / "adapter", base_of(base))
    return tmp_path / "adapter"


def test_going_on_from_an_adapter(base: DualARForCausalLM, saved: Path) -> None:
    model = add_adapter(base, LoraConfig(r=4, alpha=8.0, ars="fast", adapter=str(saved)), seed=5)
    stored = load_file(saved / "adapter_model.safetensors")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == len(stored)
    assert {p.dtype for p in trained.values()} == {torch.float32}
    for name, parameter in trained.items():
        assert torch.equal(parameter, stored[name.replace(".default", "")])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"r": 8}, "lora.r: 8, but the adapter .* has 4; set lora.r=4"),
        ({"alpha": 64.0}, "lora.alpha: 64, but the adapter .* has 8; set lora.alpha=8"),
        ({"ars": "both"}, "lora.ars: both, but the adapter .* has fast; set lora.ars=fast"),
    ],
)
def test_settings_that_are_not_the_adapters(
    base: DualARForCausalLM, saved: Path, changed: dict[str, object], message: str
) -> None:
    settings = {"r": 4, "alpha": 8.0, "ars": "fast", "adapter": str(saved), **changed}
    with pytest.raises(ConfigError, match=message):
        add_adapter(base, LoraConfig(**settings), seed=0)  # type: ignore[arg-type]


def test_adapters_that_do_not_fit(base: DualARForCausalLM, saved: Path, tmp_path: Path) -> None:
    settings = LoraConfig(r=4, alpha=8.0, ars="fast", adapter=str(saved))
    write_base(saved, replace(base_of(base), fingerprint="0"))
    with pytest.raises(CheckpointError, match="trained on another policy"):
        add_adapter(copy.deepcopy(base), settings, seed=0)
    write_base(saved, base_of(base))
    weights = load_file(saved / "adapter_model.safetensors")
    removed = min(weights)
    del weights[removed]
    save_file(weights, saved / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=f"`{removed}` isn't in the file"):
        add_adapter(copy.deepcopy(base), settings, seed=0)
    with pytest.raises(CheckpointError, match="holds no adapter_config"):
        add_adapter(copy.deepcopy(base), LoraConfig(adapter=str(tmp_path)), seed=0)
