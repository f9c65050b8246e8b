"""Every configuration key: its type, default, range and meaning. The dataclasses are the schema.

The ranges stand beside the fields (``at_least``, ``above``, ``at_most``, ``choices`` in the metadata) and
are checked by `rl.config.load_config`. No default here is published by a model's authors unless its help
says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


def option(default: Any, help: str, **limits: Any) -> Any:
    """A field with its help and limits. A list or dict default is copied for each instance."""
    metadata = {"help": help, **limits}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def section(kind: type, help: str) -> Any:
    """A field that holds another dataclass of this schema."""
    return field(default_factory=kind, metadata={"help": help})


@dataclass
class ModelConfig:
    path: str = option("tiny", "policy: `tiny` (embedded) or a folder in the published layout")
    codec: str | None = option(
        None, "codec: `tiny` (embedded), or a checkpoint file or folder; null: the one beside the policy"
    )
    prompt_format: str | None = option(
        None,
        "how a prompt becomes token ids; null: as config.json in the policy's folder says, else fish_s2",
        choices=("fish_s2", "step_audio_3"),
    )
    dtype: str = option(
        "float32", "of the base weights; LoRA and optimiser stay float32", choices=("float32", "bfloat16")
    )
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass: less memory")


@dataclass
class PromptsConfig:
    train: str = option("tiny:train", "prompts to train on: `tiny:train` (embedded) or a JSON Lines file")
    heldout: str = option("tiny:heldout", "prompts only the evaluation sees: `tiny:heldout` or a file")


@dataclass
class RolloutsConfig:
    engine: str = option(
        "auto",
        "what samples the rollouts, with the same result: `vllm`, `torch` (plain PyTorch), or `auto`, which "
        "is vllm where it is installed",
        choices=("auto", "vllm", "torch"),
    )
    group_size: int = option(16, "samples per prompt (G)", at_least=2)
    temperature: float = option(1.0, "divides the logits of both ARs", above=0)
    max_frames: int = option(
        128, "a rollout, or turn by turn each part of it, is cut after this many codec frames", at_least=1
    )
    batch_size: int = option(128, "rollouts sampled at once; no effect on what is sampled", at_least=1)
    turns_at_once: int | None = option(
        None,
        "say a prompt turn by turn, so many speaker turns at once: later ones hear the earlier ones (the "
        "published implementation of S2: 5); null: the whole text at once",
        at_least=1,
    )
    bytes_at_once: int = option(
        300, "turn by turn: what is said at once has at most so many UTF-8 bytes (S2: 300)", at_least=1
    )
    kv_cache_gib: float = option(
        1.0, "memory of engine vllm's cache; where it is short, rollouts wait for each other", above=0
    )
    workers: int = option(
        0, "processes that sample, on the Ray cluster; 0: the learner's own process samples", at_least=0
    )
    worker_cpus: float = option(1.0, "CPUs that Ray reserves for each worker", above=0)
    worker_gpus: float = option(0.0, "GPUs that Ray reserves for each worker", at_least=0)


@dataclass
class ClusterConfig:
    address: str | None = option(
        None, "Ray cluster to join, `auto` or host:port; null: one on this machine, started where needed"
    )
    learners: int = option(
        1,
        "processes that train together, each on a share of a step's rollouts: on the Ray cluster, or those "
        "that torchrun or accelerate started",
        at_least=1,
    )
    learner_cpus: float = option(1.0, "CPUs that Ray reserves for each of several learners", above=0)
    learner_gpus: float = option(0.0, "GPUs that Ray reserves for each of several learners", at_least=0)
    shard: bool = option(
        False,
        "each of several learners holds only a share of the frozen layers (FSDP2): less memory, more traffic",
    )


@dataclass
class RewardsConfig:
    recipe: str | None = option(
        None,
        "reward file to start from: a path (also relative to this file), or a name in configs/rewards; "
        "the keys below go on top",
    )
    nodes: dict[str, Any] = option(MISSING, "reward nodes by name; docs/rewards.md lists types and options")
    total: str = option(MISSING, "the reward: one arithmetic expression over node outputs")
    max_missing: float = option(
        0.2, "the run stops when more than this share of a step's totals is missing", at_least=0, at_most=1
    )


@dataclass
class LoraConfig:
    """Rank-stabilised always: the update is scaled by alpha / sqrt(r)."""

    r: int = option(16, "rank", at_least=1)
    alpha: float = option(64.0, "scale; the update is multiplied by alpha / sqrt(r)", above=0)
    dropout: float = option(
        0.0,
        "on the adapter's input; above 0 the learner's log-probs differ from the sampler's",
        at_least=0,
        at_most=0.9,
    )
    target: str = option("mlp", "layers that get an adapter: the MLPs' projections", choices=("mlp",))
    ars: str = option("both", "which ARs get an adapter", choices=("both", "slow", "fast"))
    adapter: str | None = option(
        None,
        "folder of an adapter of this policy to go on from; r, alpha and ars must be its own. The KL stays "
        "that to the policy without an adapter",
    )


@dataclass
class TrainerConfig:
    steps: int = option(MISSING, "training steps, each on fresh rollouts", at_least=1)
    prompts_per_step: int = option(8, "prompts (groups) per step", at_least=1)
    learning_rate: float = option(3e-4, "peak, of AdamW", above=0)
    lr_schedule: str = option(
        "linear", "from the peak down to min_lr_ratio of it", choices=("linear", "cosine", "constant")
    )
    warmup_steps: int = option(0, "steps of linear warm-up before the schedule", at_least=0)
    min_lr_ratio: float = option(0.1, "last learning rate over the peak", at_least=0, at_most=1)
    min_group_std: float = option(
        0.0,
        "groups whose rewards' standard deviation is below this are left out (StepAudio 3 Gen: 0.02)",
        at_least=0,
    )
    gamma: float = option(1.0, "weight of the fast AR's loss: L = L_slow + gamma * L_fast", at_least=0)
    detach_hidden: bool = option(
        False, "keep the fast AR's loss out of the slow AR (StepAudio 3 Gen's last stage of training)"
    )
    beta: float = option(0.0, "weight of the KL to the starting policy (k3 estimate)", at_least=0)
    epsilon: float = option(
        0.2, "ratio clipping below 1 - epsilon (and above, see epsilon_high)", above=0, at_most=1
    )
    epsilon_high: float | None = option(None, "ratio clipping above 1 + this; null: epsilon", above=0)
    importance_cap: float | None = option(
        None,
        "correct for a sampler that differs from the learner (bfloat16, older weights): codes weigh "
        "min(learner / sampler, this); null: no correction",
        at_least=1,
    )
    steps_ahead: int = option(
        0,
        "1: the next step's rollouts are sampled and scored while the learner still computes this one's "
        "gradient, so by the policy from before it (needs importance_cap); 0: after it",
        at_least=0,
        at_most=1,
    )
    num_iterations: int = option(1, "optimiser passes over each step's rollouts", at_least=1)
    micro_batch_tokens: int = option(
        2048,
        "positions of the slow AR per forward and backward pass, a prompt once for its samples; for memory",
        at_least=1,
    )
    max_grad_norm: float = option(1.0, "gradients are scaled down to this norm", above=0)
    weight_decay: float = option(0.0, "of AdamW, on the adapter", at_least=0)
    save_every: int = option(10, "steps between checkpoints", at_least=1)
    log_every: int = option(1, "steps between log lines", at_least=1)
    report_to: list[str] = option([], "experiment trackers beside the run folder, e.g. [tensorboard]")


@dataclass
class EvaluationConfig:
    enabled: bool = option(True, "compare held-out prompts before and after training")
    prompts: int = option(128, "held-out prompts to use, from the first", at_least=1)
    samples: int = option(4, "samples per prompt; the same seeds before and after", at_least=1)
    temperature: float | None = option(None, "sampling temperature; null: rollouts.temperature", above=0)
    monitors: dict[str, Any] = option({}, "reward nodes that only the evaluation runs, never in the total")
    listen: int = option(8, "prompts whose audio is kept for listening, before and after", at_least=0)


@dataclass
class RunConfig:
    """One run. ``<output_dir>/<name>`` is its folder."""

    name: str = option("run", "of the run's folder")
    output_dir: str = option("runs", "where run folders go")
    seed: int = option(0, "of sampling, prompt order and initialisation", at_least=0)
    model: ModelConfig = section(ModelConfig, "policy and codec")
    prompts: PromptsConfig = section(PromptsConfig, "what to say")
    rollouts: RolloutsConfig = section(RolloutsConfig, "how to sample")
    cluster: ClusterConfig = section(ClusterConfig, "where workers run")
    rewards: RewardsConfig = section(RewardsConfig, "how to score")
    lora: LoraConfig = section(LoraConfig, "what is trained")
    trainer: TrainerConfig = section(TrainerConfig, "how it is trained")
    evaluation: EvaluationConfig = section(EvaluationConfig, "how the result is judged")
