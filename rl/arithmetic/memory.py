"""Memory by component: what a run holds, on a GPU or in the machine's memory, and during which part of a
step.
 All of it is counted from shapes; only `CONTEXT`, `LIBRARIES` and `STEP_TOKENS` are round figures. The counts
are of the code as it is: what autograd keeps of a block (`layer_activations`) is compared with what it really
keeps in tests/rl/arithmetic/test_memory.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rl.arithmetic.shapes import (
    BYTES,
    adapted_parameters,
    adapter_parameters,
    kv_bytes,
    layer_parameters,
    policy_parameters,
    stack_parameters,
)
from rl.codec.s2 import BATCH_FRAMES
from rl.codec.s2_config import S2CodecConfig
from rl.policy.configuration import ARConfig, DualARConfig
from rl.policy.likelihood import LOGITS_AT_ONCE
from rl.schema import LoraConfig, RunConfig

Phase = Literal["sync", "sample", "learn"]
Where = Literal["gpu", "host"]
Process = Literal["learner", "follower", "worker"]
PHASES: tuple[Phase, ...] = ("sync", "sample", "learn")
WORDS: dict[Phase, str] = {"sync": "weight sync", "sample": "sampling", "learn": "learning"}
"""Of a step: the engine gets new weights; it samples, and codec and rewards work beside it; the learner
learns."""

CONTEXT = 2**29
"""Bytes that CUDA and its libraries take on a GPU for each process; half a GiB, round."""
LIBRARIES = 2**30
"""Bytes of a Python process with torch, transformers and Ray loaded; a GiB, round."""
LEARNER = 2 * LIBRARIES
"""Of the learner's: vLLM, TRL and the reward models' libraries come to that, and what allocators keep."""
STEP_TOKENS = 16_384
"""Tokens in one step of vLLM, by its default on a large GPU."""
TILE = 4096 * LOGITS_AT_ONCE
"""Logits that the learner holds at a time."""
TILE_COPIES = 5
"""Float32 tensors of that size that live at once: logits, over T, log-softmax, exp, product."""


@dataclass(frozen=True)
class CodecShape:
    """``weights``: bytes. ``hop``: samples a frame. ``working``: bytes while it decodes."""

    weights: int
    hop: int
    sample_rate: int
    working: int


@dataclass(frozen=True)
class Plan:
    """What an estimate is made from.

    ``prompt``: tokens of the longest prompt. ``engine``: ``vllm`` or ``torch``, whatever the configuration
    leaves open. ``gpu``: whether learner and engine run on one. ``parts``: in how many a prompt is said, at
    most.
    """

    run: RunConfig
    policy: DualARConfig
    codec: CodecShape
    prompt: int
    engine: str
    gpu: bool
    parts: int = 1

    @property
    def rollouts(self) -> int:
        """Of one step."""
        return self.run.trainer.prompts_per_step * self.run.rollouts.group_size

    @property
    def frames(self) -> int:
        """Of the longest rollout."""
        return self.parts * self.run.rollouts.max_frames

    @property
    def length(self) -> int:
        """Tokens of the longest rollout with its prompt."""
        return self.prompt + self.frames


@dataclass(frozen=True)
class Component:
    """``size`` bytes that a ``process`` holds in ``phases``."""

    name: str
    size: int
    where: Where
    phases: tuple[Phase, ...] = PHASES
    process: Process = "learner"


@dataclass(frozen=True)
class Peak:
    """The phase in which most is held, and how much: bytes."""

    phase: Phase
    size: int


def components(plan: Plan) -> list[Component]:
    """What learner, engine and codec hold; each rollout worker's own are of the process ``worker``."""
    parts = [*_learner(plan), *_engine(plan)]
    return [_beside(part) for part in parts] if plan.run.trainer.steps_ahead else parts


def _beside(part: Component) -> Component:
    """``part`` where a step is sampled while the one before it is learnt from."""
    both = {"sample", "learn"}
    held = both.union(part.phases) if both.intersection(part.phases) else set(part.phases)
    return replace(part, phases=tuple(phase for phase in PHASES if phase in held))


def peak(parts: Sequence[Component], where: Where, process: Process | None = None) -> Peak:
    """The largest sum of any phase, of one kind of process or of all."""
    sums: dict[Phase, int] = {}
    for phase in PHASES:
        held = [part for part in parts if phase in part.phases and part.where == where]
        sums[phase] = sum(part.size for part in held if process in (None, part.process))
    phase = max(PHASES, key=lambda phase: sums[phase])
    return Peak(phase, sums[phase])


def layer_activations(ar: ARConfig, dtype: str, rank: int | None) -> int:
    """Bytes that autograd keeps of one block for its backward pass, for each position.

    ``rank``: of the adapter on its MLP; None: it has none, and gradients only pass through. Frozen matrices
    keep no input. Both norms keep theirs in float32, and so do the q/k norms. Attention keeps q, k and v as
    projected, in one piece, q and k rotated, its output, and a float32 for each head. SwiGLU keeps three
    vectors as wide as the MLP. An adapter keeps its input in float32, which in float32 w1 and w3 share, and
    ``rank`` values.
    """
    size = BYTES[dtype]
    attention = size * 3 * (ar.n_head + ar.n_local_heads) * ar.head_dim + 4 * ar.n_head
    if ar.attention_qk_norm and dtype != "float32":
        attention += 4 * (ar.n_head + ar.n_local_heads) * (ar.head_dim + 1)
    kept = 2 * 4 * ar.dim + attention + 3 * size * ar.intermediate_size
    if rank is None:
        return kept
    inputs = ar.dim if dtype == "float32" else 2 * ar.dim
    return kept + 4 * inputs + 4 * ar.intermediate_size + 3 * 4 * rank


def activations(
    config: DualARConfig,
    dtype: str,
    lora: LoraConfig,
    tokens: int,
    frames: int,
    *,
    checkpointing: bool,
    detach_hidden: bool = False,
) -> int:
    """Bytes that both ARs keep for the backward pass of a micro-batch, at its peak.

    ``tokens``: rows times the padded length, prompts and all; ``frames``: rows times frames, each of which is
    K positions of the fast AR. With ``checkpointing`` each block keeps its input only, and beside that either
    the keys and values of all layers (forward) or all of one block (backward).
    """
    slow, fast = config.text_config, config.audio_decoder_config
    positions = frames * config.num_codebooks
    of_slow = layer_activations(slow, dtype, lora.r if lora.ars != "fast" else None)
    of_fast = layer_activations(fast, dtype, lora.r if lora.ars != "slow" else None)
    slow_kept = 0 if lora.ars == "fast" else slow.n_layer
    fast_kept = 0 if lora.ars == "slow" and detach_hidden else fast.n_layer
    if not checkpointing:
        return slow_kept * of_slow * tokens + fast_kept * of_fast * positions
    size = BYTES[dtype]
    inputs = slow_kept * size * slow.dim * tokens + fast_kept * size * fast.dim * positions
    return inputs + max(kv_bytes(config, dtype) * tokens, of_slow * tokens, of_fast * positions)


def heads(config: DualARConfig, dtype: str, frames: int) -> int:
    """Bytes of both ARs' logits, which come in tiles, of the states of ``frames`` frames that they are made
    of, and of the slow head's rows for what may be sampled."""
    slow, fast = config.text_config, config.audio_decoder_config
    states = frames * (slow.dim + (config.num_codebooks - 1) * fast.dim)
    head = (config.semantic_size + 1) * slow.dim
    return TILE_COPIES * 4 * TILE + BYTES[dtype] * (states + head)


def s2_codec_shape(config: S2CodecConfig, parameters: int) -> CodecShape:
    """In float32, decoding `BATCH_FRAMES` frames at once: three tensors of the largest layer live
    together."""
    widest, channels, rate = 0, config.decoder_dim, config.hop
    for stride in config.decoder_rates:
        rate //= stride
    for stride in config.decoder_rates:
        channels, rate = channels // 2, rate * stride
        widest = max(widest, channels * rate)
    return CodecShape(4 * parameters, config.hop, config.sample_rate, 3 * 4 * widest * BATCH_FRAMES)


def micro_batch(plan: Plan) -> tuple[int, int]:
    """Tokens and frames of the largest one: a prompt once, and frames of the samples that share it."""
    tokens = max(plan.run.trainer.micro_batch_tokens, plan.length)
    return tokens, tokens - plan.prompt


def held_weights(plan: Plan) -> int:
    """Bytes of the policy that one learner holds: all, or its share of the layers and one that computes."""
    run, policy = plan.run, plan.policy
    slow, fast = policy.text_config, policy.audio_decoder_config
    whole = policy_parameters(policy)
    if run.cluster.shard:
        layers = stack_parameters(slow) + stack_parameters(fast)
        whole += layers // run.cluster.learners - layers + max(layer_parameters(slow), layer_parameters(fast))
    return BYTES[run.model.dtype] * whole


def _learner(plan: Plan) -> Iterator[Component]:
    """Of the first learner, and of each other one, whose process is ``follower``."""
    run, policy, dtype = plan.run, plan.policy, plan.run.model.dtype
    place: Where = "gpu" if plan.gpu else "host"
    merged = BYTES[dtype] * adapted_parameters(policy, run.lora.ars)
    yield from _learning(plan, place, "learner")
    yield Component("merged weights", merged, place, ("sync",))
    yield Component("codec", plan.codec.weights, place)
    yield Component("codec, decoding", plan.codec.working, place, ("sample",))
    audio, codes = 4 * plan.codec.hop, (8 + 4) * policy.num_codebooks
    clips = plan.rollouts * plan.frames
    yield Component("a step's audio", audio * clips, "host", ("sample", "learn"))
    yield Component("a step's codes, log-probs", codes * clips, "host", ("sample", "learn"))
    yield Component("Python and libraries", LEARNER, "host")
    if run.rollouts.workers:  # a copy to send, and Ray's
        yield Component("merged weights, sent", 2 * merged, "host", ("sync",))
    if run.cluster.learners > 1:
        yield from _learning(plan, place, "follower")
        yield Component("Python and libraries", LEARNER, "host", PHASES, "follower")


def _learning(plan: Plan, place: Where, own: Process) -> Iterator[Component]:
    """What every learner holds."""
    run, policy, dtype = plan.run, plan.policy, plan.run.model.dtype
    tokens, frames = micro_batch(plan)
    kept = activations(
        policy,
        dtype,
        run.lora,
        tokens,
        frames,
        checkpointing=run.model.gradient_checkpointing,
        detach_hidden=run.trainer.detach_hidden,
    )
    state = 16 * adapter_parameters(policy, run.lora)
    yield Component("policy", held_weights(plan), place, PHASES, own)
    yield Component("adapter, gradients, AdamW", state, place, PHASES, own)
    yield Component("learner's activations", kept, place, ("learn",), own)
    yield Component("learner's logits", heads(policy, dtype, frames), place, ("learn",), own)
    if plan.gpu:
        yield Component("CUDA", CONTEXT, "gpu", PHASES, own)


def _engine(plan: Plan) -> Iterator[Component]:
    """Of one engine, in the learner's process or in each worker's."""
    run, policy, dtype = plan.run, plan.policy, plan.run.model.dtype
    own: Process = "worker" if run.rollouts.workers else "learner"
    on_gpu = plan.gpu and (not run.rollouts.workers or run.rollouts.worker_gpus > 0)
    place: Where = "gpu" if on_gpu else "host"
    sleeps = plan.engine == "vllm" and on_gpu
    awake: tuple[Phase, ...] = ("sync", "sample") if sleeps else PHASES
    weights = BYTES[dtype] * policy_parameters(policy)
    yield Component("engine's weights", weights, place, awake, own)
    if sleeps:
        yield Component("engine's weights, asleep", weights, "host", ("learn",), own)
    if plan.engine == "vllm":
        yield Component("KV cache", int(run.rollouts.kv_cache_gib * 2**30), place, awake, own)
        read = run.trainer.prompts_per_step * plan.prompt
        tokens = STEP_TOKENS if on_gpu else min(STEP_TOKENS, read)
    else:
        rows = min(run.rollouts.batch_size, plan.rollouts)
        cache = rows * plan.length * kv_bytes(policy, dtype)
        yield Component("KV cache", cache, place, ("sample",), own)
        tokens = max(rows, plan.prompt)
    slow = policy.text_config
    working = tokens * BYTES[dtype] * (3 * slow.intermediate_size + 4 * slow.dim)
    yield Component("engine, computing", working, place, ("sample",), own)
    if run.rollouts.workers:
        yield Component("Python and libraries", LIBRARIES, "host", PHASES, own)
        if on_gpu:
            yield Component("CUDA", CONTEXT, "gpu", PHASES, own)


def cache_holds(plan: Plan) -> int:
    """Rollouts of full length that vLLM's KV cache holds at once, each with a prompt of its own."""
    return int(plan.run.rollouts.kv_cache_gib * 2**30) // (
        plan.length * kv_bytes(plan.policy, plan.run.model.dtype)
    )
