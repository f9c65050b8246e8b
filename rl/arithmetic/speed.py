"""How long a step takes at best: bytes that sampling moves, operations that learning does, and what bounds
both.
 Operations are those of matrix products, two for each multiply-add. What isn't counted from shapes is a field
of `Machine` or a constant here, and none of it was measured on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from rl.arithmetic.memory import Plan
from rl.arithmetic.shapes import BYTES, adapted_parameters, adapter_parameters, kv_bytes, stack_parameters
from rl.codec.s2 import CHUNK_FRAMES, S2Codec
from rl.codec.s2_config import S2CodecConfig
from rl.policy.configuration import ARConfig, DualARConfig

PASSES_SHARED = 1
"""Passes that the fast AR saves in a frame: its first two positions go through the layers together."""
KERNELS_A_LAYER = 36
"""Launched by one eager block of the fast AR: 16 for two norms, 8 for RoPE, 12 for products, cache and
gate."""
KERNELS_A_CODE = 25
"""Launched to norm, project and draw one code."""


@dataclass(frozen=True)
class Machine:
    """One kind of GPU, with its host and network.

    ``memory``: bytes. ``bandwidth``, ``link``, ``network``: bytes a second, of its memory, to its host, and
    to another machine. ``flops``: bfloat16 a second, dense, and ``flops32`` float32. ``reached_bandwidth``,
    ``reached_flops``: the shares of them that sampling and learning are taken to reach. ``launch``: seconds
    that a kernel of an eager model takes at least.
    """

    name: str
    memory: float
    bandwidth: float
    flops: float
    flops32: float
    link: float = 50e9
    network: float = 25e9
    reached_bandwidth: float = 0.6
    reached_flops: float = 0.4
    launch: float = 4e-6


H200 = Machine("H200", 141e9, 4.8e12, 989e12, 67e12)
H100 = Machine("H100", 80e9, 3.35e12, 989e12, 67e12)
"""SXM; the makers' figures."""


@dataclass(frozen=True)
class Traffic:
    """Bytes read from a GPU's memory for one frame of every running sample."""

    slow: int
    fast: int
    cache: int

    @property
    def total(self) -> int:
        return self.slow + self.fast + self.cache


def passes(config: DualARConfig) -> int:
    """Of the fast AR, one after the other, for one frame."""
    return config.num_codebooks - PASSES_SHARED


def traffic(config: DualARConfig, dtype: str, samples: int, context: int) -> Traffic:
    """Of one frame for each of ``samples`` with ``context`` tokens so far.

    The weights are read once for all samples, the fast AR's once for each pass, keys and values for each
    sample.
    """
    slow, fast, size = config.text_config, config.audio_decoder_config, BYTES[dtype]
    head = (config.semantic_size + 1) * slow.dim
    of_fast = passes(config) * (stack_parameters(fast) + fast.vocab_size * fast.dim)
    return Traffic(
        slow=size * (stack_parameters(slow) + head),
        fast=size * of_fast,
        cache=samples * context * kv_bytes(config, dtype),
    )


def kernels(config: DualARConfig) -> int:
    """Launched by the fast AR for one frame of all samples; the slow AR's are in a captured graph."""
    return passes(config) * (config.audio_decoder_config.n_layer * KERNELS_A_LAYER + KERNELS_A_CODE)


@dataclass(frozen=True)
class FrameTime:
    """Seconds for one frame of every running sample: what memory, and what launches, allow."""

    slow: float
    fast_memory: float
    fast_launches: float

    @property
    def total(self) -> float:
        return self.slow + max(self.fast_memory, self.fast_launches)

    @property
    def bound(self) -> str:
        return "kernel launches" if self.fast_launches > self.fast_memory else "memory bandwidth"


def frame_time(config: DualARConfig, dtype: str, samples: int, context: int, machine: Machine) -> FrameTime:
    """See `traffic` and `kernels`."""
    moved, speed = traffic(config, dtype, samples, context), machine.bandwidth * machine.reached_bandwidth
    return FrameTime(
        slow=(moved.slow + moved.cache) / speed,
        fast_memory=moved.fast / speed,
        fast_launches=kernels(config) * machine.launch,
    )


def slow_flops(config: DualARConfig, tokens: int, length: int) -> float:
    """Of one forward pass over ``tokens`` of the slow AR in sequences of ``length``, without heads."""
    return _forward(config.text_config, tokens, length)


def fast_flops(config: DualARConfig, frames: int) -> float:
    """Of one teacher-forced forward pass over the K positions of each frame, the head of K - 1 of them with
    it."""
    fast, books = config.audio_decoder_config, config.num_codebooks
    head = 2 * fast.dim * fast.vocab_size * frames * (books - 1)
    return _forward(fast, frames * books, books) + head


def _forward(ar: ARConfig, tokens: int, length: int) -> float:
    """Two operations for each weight and token, and attention over the causal half of ``length`` squared."""
    scores = 2 * 2 * ar.n_layer * ar.n_head * ar.head_dim * length / 2
    return tokens * (2.0 * (stack_parameters(ar) - _norms(ar)) + scores)


def _norms(ar: ARConfig) -> int:
    return ar.n_layer * (2 * ar.dim + (2 * ar.head_dim if ar.attention_qk_norm else 0))


def learner_passes(plan: Plan) -> int:
    """Forward passes that one pass of learning costs: itself, the way back (through frozen weights, which
    need no gradient of their own), the recomputation with gradient checkpointing, and the KL's reference."""
    return 2 + plan.run.model.gradient_checkpointing + (plan.run.trainer.beta > 0)


def learner_flops(plan: Plan, frames: int) -> float:
    """Of one step whose rollouts are ``frames`` long; a group's prompt is computed once."""
    length = plan.prompt + frames
    tokens = plan.rollouts * frames + plan.run.trainer.prompts_per_step * plan.prompt
    head = 2.0 * plan.policy.text_config.dim * (plan.policy.semantic_size + 1) * plan.rollouts * frames
    slow = slow_flops(plan.policy, tokens, length) + head
    fast = fast_flops(plan.policy, plan.rollouts * frames)
    return plan.run.trainer.num_iterations * learner_passes(plan) * (slow + fast)


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step's parts. ``workers``: others sample, while the learner's process decodes and scores;
    ``beside``: rewards have threads or processes of their own."""

    sync: float
    sample: float
    decode: float
    rewards: float
    learn: float
    workers: bool
    beside: bool

    @property
    def total(self) -> float:
        """What shares a GPU or a thread adds up; of what runs beside each other the longest counts."""
        engine = self.sample + (0.0 if self.workers else self.decode)
        scored = self.rewards if self.beside else self.decode + self.rewards
        return self.sync + max(engine, self.decode, scored) + self.learn

    @property
    def bound(self) -> str:
        """The longest part."""
        parts = {"sampling": self.sample, "decoding": self.decode, "rewards": self.rewards}
        parts |= {"learning": self.learn, "weight sync": self.sync}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True)
class Scale:
    """On how many ``machines`` GPUs learn and sample; ``reward_cores``: that score at once; ``beside``: in
    threads or processes of their own."""

    machines: int = 1
    reward_cores: int = 16
    beside: bool = False


def step_time(
    plan: Plan, machine: Machine, scale: Scale, *, frames: int, decode_flops: float, reward_seconds: float
) -> StepTime:
    """Of rollouts of ``frames`` frames each, as many at once as ``rollouts.batch_size`` allows.

    ``decode_flops``: of the codec, in float32, for one frame; ``reward_seconds``: that one clip costs a core.
    To workers weights go over the host, and with more machines than one over the network, once for each.
    """
    run = plan.run
    each = -(-plan.rollouts // max(1, run.rollouts.workers))
    at_once = min(run.rollouts.batch_size, each)
    one = frame_time(plan.policy, run.model.dtype, at_once, plan.prompt + frames // 2, machine)
    merged = BYTES[run.model.dtype] * adapted_parameters(plan.policy, run.lora.ars)
    sync = 2 * merged / (machine.bandwidth * machine.reached_bandwidth)
    if run.rollouts.workers:
        sync += 2 * merged / machine.link
    if scale.machines > 1:
        sync += (scale.machines - 1) * merged / machine.network
    flops, flops32 = machine.flops * machine.reached_flops, machine.flops32 * machine.reached_flops
    return StepTime(
        sync=sync,
        sample=-(-each // at_once) * frames * one.total,
        decode=plan.rollouts * frames * decode_flops / flops32,
        rewards=plan.rollouts * reward_seconds / scale.reward_cores,
        learn=learner_flops(plan, frames) / run.cluster.learners / flops,
        workers=run.rollouts.workers > 0,
        beside=scale.beside,
    )


def codec_flops(config: S2CodecConfig) -> int:
    """Of S2's codec for one frame of audio, as torch's counter finds them; nothing is computed."""
    with torch.device("meta"):
        codec = S2Codec(config)
        codes = torch.zeros(1, CHUNK_FRAMES, len(config.codebook_sizes), dtype=torch.long)
    codec.fold()
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        codec.decoder(codec.quantizer.upsample(codec.quantizer.latents(codes)))
    return counter.get_total_flops() // CHUNK_FRAMES


def gradient_bytes(plan: Plan) -> int:
    """That the learners add up at each optimiser step: the adapter's, in float32."""
    return 4 * adapter_parameters(plan.policy, plan.run.lora)
