"""Bytes by component: by hand for the published S2, and against what autograd keeps of a real policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rl.arithmetic.memory import (
    CodecShape,
    Component,
    Plan,
    activations,
    cache_holds,
    components,
    heads,
    layer_activations,
    micro_batch,
    peak,
    s2_codec_shape,
)
from rl.arithmetic.shapes import BYTES, published_s2
from rl.codec.s2_config import S2CodecConfig
from rl.config import load_config
from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter

S2 = published_s2()
CODEC = s2_codec_shape(S2CodecConfig(), 391_430_530)


def plan(*overrides: str, gpu: bool = True, engine: str = "vllm") -> Plan:
    return Plan(load_config("grpo_s2", overrides), S2, CODEC, prompt=128, engine=engine, gpu=gpu)


def sizes(parts: list[Component], process: str = "learner") -> dict[str, int]:
    return {part.name: part.size for part in parts if part.process == process}


def test_the_codec_by_hand() -> None:
    # 96 channels at 2048 samples a frame, 512 frames, float32, three tensors at once
    assert CodecShape(4 * 391_430_530, 2048, 44_100, 3 * 4 * 96 * 2048 * 512) == CODEC


def test_a_layers_activations_by_hand() -> None:
    norms, qk_norms, attention = 20_480, 4 * 40 * 129, 2 * 3 * 40 * 128 + 128
    gate, adapter = 3 * 2 * 9728, 20_480 + 38_912 + 192
    slow = norms + qk_norms + attention + gate + adapter
    assert layer_activations(S2.text_config, "bfloat16", 16) == slow == 189_920
    assert layer_activations(S2.audio_decoder_config, "bfloat16", None) == norms + attention + gate


def test_activations_with_checkpointing_by_hand() -> None:
    # inputs of 36 + 4 blocks, and one block of the fast AR over 10 positions of each frame
    kept = 36 * 5120 * 2560 + 4 * 5120 * 20_480 + 169_280 * 20_480
    assert activations(S2, "bfloat16", LoraConfig(), 2560, 2048, checkpointing=True) == kept


def test_an_ar_without_an_adapter_keeps_nothing_that_no_gradient_needs() -> None:
    def bytes_of(ars: str, **options: bool) -> int:
        return activations(S2, "bfloat16", LoraConfig(ars=ars), 100, 10, checkpointing=False, **options)

    slow, fast = 36 * 100 * 189_920, 4 * 10 * 10 * (169_280 - 59_584)
    assert bytes_of("slow") == slow + fast
    assert bytes_of("slow", detach_hidden=True) == slow
    assert bytes_of("fast") == 4 * 10 * 10 * 169_280


def test_one_gpu_by_hand() -> None:
    found = sizes(components(plan("rollouts.kv_cache_gib=11")))
    assert found["policy"] == found["engine's weights"] == 2 * 4_561_852_416
    assert found["adapter, gradients, AdamW"] == 16 * 23_592_960
    assert found["merged weights"] == 2 * 40 * 74_711_040
    assert found["KV cache"] == 11 * 2**30
    assert found["a step's audio"] == 256 * 512 * 2048 * 4


def test_the_engine_gives_its_memory_to_the_learner() -> None:
    parts = components(plan())
    held = {
        phase: [p.name for p in parts if p.where == "gpu" and phase in p.phases]
        for phase in ("sample", "learn")
    }
    assert "engine's weights" in held["sample"]
    assert "engine's weights" not in held["learn"]
    assert "learner's activations" not in held["sample"]
    (asleep,) = [part for part in parts if part.name == "engine's weights, asleep"]
    assert (asleep.where, asleep.phases) == ("host", ("learn",))


def test_a_step_ahead_holds_at_once_what_sampling_and_learning_hold() -> None:
    apart, beside = components(plan()), components(plan("trainer.steps_ahead=1", "trainer.importance_cap=2"))
    alone = sum(part.size for part in apart if part.where == "gpu" and part.phases != ("sync",))
    assert peak(beside, "gpu").size == alone > peak(apart, "gpu").size


def test_workers_have_an_engine_each_and_the_learner_none() -> None:
    parts = components(plan("rollouts.workers=2", "rollouts.worker_gpus=1"))
    assert {"engine's weights", "KV cache", "CUDA"} <= sizes(parts, "worker").keys()
    assert "engine's weights" not in sizes(parts)
    assert sizes(parts)["merged weights, sent"] == 2 * sizes(parts)["merged weights"]


def test_workers_without_gpus_sample_in_the_hosts_memory() -> None:
    parts = components(plan("rollouts.workers=2"))
    assert all(part.where == "host" for part in parts if part.process == "worker")


def test_several_learners_hold_the_policy_each_or_a_share() -> None:
    parts = components(plan("cluster.learners=4", "cluster.learner_gpus=1"))
    assert sizes(parts, "follower")["policy"] == 2 * 4_561_852_416
    assert "codec" not in sizes(parts, "follower")
    shared = sizes(components(plan("cluster.learners=4", "cluster.shard=true")), "follower")
    layers = 36 * 100_930_816 + 4 * 100_930_560
    assert shared["policy"] == 2 * (4_561_852_416 - layers + layers // 4 + 100_930_816)


def test_logits_by_hand() -> None:
    states, head = 3968 * (2560 + 9 * 2560), 4097 * 2560
    assert heads(S2, "bfloat16", 3968) == 5 * 4 * 4096 * 1024 + 2 * (states + head)
    assert micro_batch(plan()) == (4096, 3968)
    assert micro_batch(plan("trainer.micro_batch_tokens=100")) == (640, 512), "a sample is never cut"


def test_the_torch_engines_cache_has_room_for_all_frames() -> None:
    found = sizes(components(plan(engine="torch")))
    assert found["KV cache"] == 128 * (128 + 512) * 147_456


def test_without_a_gpu_all_is_the_hosts() -> None:
    assert {part.where for part in components(plan(gpu=False))} == {"host"}


def test_peak_is_the_fullest_phase() -> None:
    parts = [
        Component("a", 5, "gpu"),
        Component("b", 3, "gpu", ("sync",)),
        Component("c", 4, "gpu", ("learn",), "worker"),
        Component("d", 99, "host"),
    ]
    assert peak(parts, "gpu").size == 9
    assert (peak(parts, "gpu", "learner").phase, peak(parts, "gpu", "learner").size) == ("sync", 8)


def test_what_the_cache_holds() -> None:
    small = plan("rollouts.kv_cache_gib=1")
    assert cache_holds(small) == 2**30 // (640 * 147_456) == 11
    assert cache_holds(replace(small, parts=2)) == 2**30 // (1152 * 147_456)


def config_of(heads: int, head_dim: int, qk_norm: bool) -> DualARConfig:
    shape = {
        "dim": 96,
        "intermediate_size": 256,
        "n_head": heads,
        "n_local_heads": heads,
        "head_dim": head_dim,
    }
    return DualARConfig(
        text_config={**shape, "n_layer": 4, "vocab_size": 300, "attention_qk_norm": qk_norm},
        audio_decoder_config={
            **shape, "n_layer": 3, "vocab_size": 128, "text_dim": 96, "num_codebooks": 6,
            "attention_qk_norm": qk_norm,
        },
        semantic_start_token_id=100, semantic_end_token_id=227, eos_token_id=1, pad_token_id=0,
    )  # fmt: skip


def kept_by_autograd(model: torch.nn.Module, run) -> int:
    """Bytes of the storages that the graph of ``run()`` keeps, without the model's own."""
    own = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = run()
    total = sum(kept.values())
    assert out.requires_grad
    return total


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_a_block_keeps_what_is_counted(dtype: str, qk_norm: bool) -> None:
    config = config_of(3, 32, qk_norm)
    torch.manual_seed(0)
    policy = DualARForCausalLM(config).to(getattr(torch, dtype))
    adapted = add_adapter(policy, LoraConfig(r=8), seed=0)
    batch, length = 4, 64
    x = torch.randn(batch, length, 96, dtype=policy.dtype, requires_grad=True)
    stack = policy.text_model.model
    found = kept_by_autograd(adapted, lambda: stack.run(x, torch.arange(length))[0])
    final_norm = 4 * 96
    counted = batch * length * (4 * layer_activations(config.text_config, dtype, 8) + final_norm)
    assert found == pytest.approx(counted, rel=0.03)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_checkpointing_keeps_the_blocks_inputs(dtype: str) -> None:
    config = config_of(3, 32, True)
    policy = DualARForCausalLM(config).to(getattr(torch, dtype))
    adapted = add_adapter(policy, LoraConfig(r=8), seed=0)
    adapted.train()
    policy.gradient_checkpointing_enable()
    x = torch.randn(16, 64, 96, dtype=policy.dtype, requires_grad=True)
    found = kept_by_autograd(adapted, lambda: policy.text_model.model.run(x, torch.arange(64))[0])
    counted = 16 * 64 * 96 * (4 * BYTES[dtype] + 4)  # and the final norm's, in float32
    assert found == pytest.approx(counted, rel=0.03)
