"""Traffic, operations and times: by hand for the published S2, and as torch's counter finds them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rl.arithmetic.memory import Plan, s2_codec_shape
from rl.arithmetic.shapes import published_s2
from rl.arithmetic.speed import (
    H200,
    Machine,
    Scale,
    StepTime,
    codec_flops,
    fast_flops,
    frame_time,
    gradient_bytes,
    learner_flops,
    learner_passes,
    slow_flops,
    step_time,
    traffic,
)
from rl.codec.s2_config import S2CodecConfig
from rl.config import load_config
from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM

S2 = published_s2()
SMALL = DualARConfig(
    text_config={
        "n_layer": 3, "dim": 64, "intermediate_size": 160, "n_head": 4, "n_local_heads": 4, "head_dim": 32,
        "vocab_size": 700, "attention_qk_norm": True,
    },
    audio_decoder_config={
        "n_layer": 2, "dim": 64, "intermediate_size": 96, "n_head": 2, "n_local_heads": 2, "head_dim": 32,
        "vocab_size": 256, "text_dim": 64, "num_codebooks": 8,
    },
    semantic_start_token_id=400, semantic_end_token_id=655, eos_token_id=1, pad_token_id=0,
)  # fmt: skip


def plan(*overrides: str) -> Plan:
    codec = s2_codec_shape(S2CodecConfig(), 391_430_530)
    return Plan(load_config("grpo_s2", overrides), S2, codec, 128, "vllm", True)


def counted(run) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        run()
    return counter.get_total_flops()


def test_traffic_by_hand() -> None:
    moved = traffic(S2, "bfloat16", samples=128, context=256)
    # 36 layers of 100,930,816 and 4097 rows of the head; nine passes of 4 layers and the head
    assert moved.slow == 2 * (36 * 100_930_816 + 4097 * 2560) == 7_287_995_392
    assert moved.fast == 2 * 9 * (4 * 100_930_560 + 4096 * 2560) == 7_455_744_000
    assert moved.cache == 128 * 256 * 147_456
    assert moved.total == moved.slow + moved.fast + moved.cache


def test_a_frames_time_by_hand() -> None:
    machine = Machine("x", 0, bandwidth=10e12, flops=1, flops32=1, reached_bandwidth=0.5, launch=0)
    time = frame_time(S2, "bfloat16", 128, 256, machine)
    assert time.total == pytest.approx((7_287_995_392 + 7_455_744_000 + 128 * 256 * 147_456) / 5e12)
    assert time.bound == "memory bandwidth"
    slow = frame_time(S2, "bfloat16", 128, 256, replace(machine, launch=1e-5))
    # nine passes, each 4 layers of 36 kernels and 25 for the code
    assert slow.fast_launches == pytest.approx(9 * (4 * 36 + 25) * 1e-5)
    assert (slow.total, slow.bound) == (slow.slow + slow.fast_launches, "kernel launches")


def test_operations_are_what_torch_counts() -> None:
    with torch.device("meta"):
        model = DualARForCausalLM(SMALL)
        rows = torch.zeros(2, 9, 50, dtype=torch.long)
        hidden, codes = torch.zeros(30, 64), torch.zeros(30, 8, dtype=torch.long)
    # torch counts all of a length squared, where half is masked
    masked = 2 * 3 * 4 * 32 * 50 * (2 * 50)
    assert counted(lambda: model(rows)) == slow_flops(SMALL, 100, 50) + masked
    masked = 2 * 2 * 2 * 32 * 8 * (30 * 8)
    assert counted(lambda: model.fast_logits(hidden, codes)) == fast_flops(SMALL, 30) + masked


def test_the_codecs_operations_by_hand() -> None:
    def conv(inputs: int, outputs: int, taps: int, positions: int) -> int:
        return 2 * inputs * outputs * taps * positions

    # per frame: upsampling by 2 twice, each a transposed convolution and a ConvNeXt block of four widths
    up = sum(conv(1024, 1024, 2, n) + conv(1, 1024, 7, 2 * n) + conv(1024, 4096, 2, 2 * n) for n in (1, 2))
    decoder = conv(1024, 1536, 7, 4) + conv(96, 1, 7, 2048)
    for width, stride, positions in ((1536, 8, 4), (768, 8, 32), (384, 4, 256), (192, 2, 1024)):
        half, after = width // 2, stride * positions
        decoder += conv(width, half, 2 * stride, positions)  # a transposed convolution: taps per input
        decoder += 3 * (conv(half, half, 7, after) + conv(half, half, 1, after))
    transformer = 8 * 2 * (4 * 1024 * 1024 + 3 * 1024 * 3072)
    total = up + decoder + transformer
    assert codec_flops(S2CodecConfig()) == pytest.approx(total, rel=0.02), "attention and codebooks beside it"


def test_learning_is_passes_times_forward() -> None:
    assert learner_passes(plan()) == 4, "forward, backward, recomputation, reference"
    assert learner_passes(plan("trainer.beta=0", "model.gradient_checkpointing=false")) == 2
    forward = (
        slow_flops(S2, 256 * 256 + 16 * 128, 384) + fast_flops(S2, 256 * 256) + 2 * 2560 * 4097 * 256 * 256
    )
    assert learner_flops(plan(), 256) == pytest.approx(4 * forward)
    assert learner_flops(plan("trainer.num_iterations=2"), 256) == pytest.approx(8 * forward)


def test_gradients_are_the_adapters() -> None:
    assert gradient_bytes(plan()) == 4 * 23_592_960


def test_a_step_by_hand() -> None:
    machine = Machine("x", 0, 10e12, flops=1e15, flops32=1e14, link=1e11, network=1e10, launch=0)
    options = {"frames": 256, "decode_flops": 6e9, "reward_seconds": 1.0}
    alone = step_time(plan(), machine, Scale(), **options)
    one = frame_time(S2, "bfloat16", 128, 256, machine).total
    assert alone.sample == pytest.approx(2 * 256 * one), "256 rollouts, 128 at once"
    assert alone.decode == pytest.approx(256 * 256 * 6e9 / 4e13)
    assert alone.rewards == 16.0
    assert alone.learn == pytest.approx(learner_flops(plan(), 256) / 4e14)
    assert alone.sync == pytest.approx(2 * 5_976_883_200 / 6e12)
    many = plan("cluster.learners=2", "rollouts.workers=4", "rollouts.worker_gpus=1")
    spread = step_time(many, machine, Scale(machines=3), **options)
    assert spread.sample == pytest.approx(256 * frame_time(S2, "bfloat16", 64, 256, machine).total)
    assert spread.learn == pytest.approx(alone.learn / 2)
    assert spread.decode == alone.decode
    network = 2 * 5_976_883_200 / 1e11 + 2 * 5_976_883_200 / 1e10
    assert spread.sync == pytest.approx(alone.sync + network)


def test_what_adds_up_and_what_runs_beside() -> None:
    parts = {"sync": 1.0, "sample": 5.0, "decode": 3.0, "rewards": 4.0, "learn": 10.0}
    assert StepTime(**parts, workers=False, beside=False).total == 1 + 8 + 10
    assert StepTime(**parts, workers=True, beside=False).total == 1 + 7 + 10
    assert StepTime(**parts, workers=False, beside=True).total == 1 + 8 + 10
    assert StepTime(**parts, workers=True, beside=True).total == 1 + 5 + 10
    assert StepTime(**parts, workers=True, beside=True).bound == "learning"


def test_h200_is_faster_at_sampling_than_its_launches() -> None:
    assert frame_time(S2, "bfloat16", 128, 256, H200).bound == "kernel launches"
