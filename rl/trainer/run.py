"""A training run from configuration to report, and its continuation after an interruption."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from peft import PeftModel
from rich.console import Console

from rl.config import config_hash, load_config, save_resolved
from rl.errors import ConfigError, RunFolderError
from rl.evaluation import compare_stored, evaluate
from rl.live import LiveView, before_after_table
from rl.metrics import METRICS_FILE, MetricsWriter, read_metrics
from rl.parts import Parts, build_parts, load_for_run, uses_vllm
from rl.policy.modeling import DualARForCausalLM
from rl.prompts_file import load_prompts
from rl.report.html import write_report
from rl.run_folder import CONFIG_FILE
from rl.schema import RunConfig
from rl.seeds import derive_seed
from rl.trainer.adapter import add_adapter, merged_weights, merging
from rl.trainer.checkpoints import CHECKPOINTS, last_checkpoint
from rl.trainer.collect import Collector, check_ahead
from rl.trainer.grpo import DualARTrainer
from rl.trainer.learners import Learners, joined, launched, restarts
from rl.trainer.sharding import shard_frozen
from rollouts.store import discard_steps_after, step_path, write_step
from rollouts.types import Prompt


def train(config: RunConfig, resume: Path | None = None) -> Path:
    """Train as ``config`` says and write the run folder; returns it.

    ``resume``: a run folder to go on in from its last checkpoint, with the same configuration. Several
    learners are started on the Ray cluster, unless this process is already one of theirs. Raises an
    `AuralignError` where something is wrong with the configuration, a file or too many rewards.
    """
    if config.cluster.learners > 1 and not launched():
        from rl.trainer.supervise import supervise  # imports Ray

        return supervise(config, resume)
    folder = resume or run_folder(config)
    if restarts() and (folder / METRICS_FILE).exists():
        resume = folder
    with joined(config.cluster.learners) as learners:
        checkpoint, done = learners.deal(lambda: [_begin(config, folder, resume, learners)] * learners.size)
        if learners.first:
            _lead(config, folder, checkpoint, done, resume is not None, learners)
        else:
            _follow(config, folder, checkpoint, learners)
    return folder


def run_folder(config: RunConfig) -> Path:
    """Where the run of ``config`` is written."""
    return Path(config.output_dir, config.name)


def _lead(
    config: RunConfig, folder: Path, checkpoint: Path | None, done: int, resumed: bool, learners: Learners
) -> None:
    """The first learner's part, the whole run where it is alone: all but the others' shares of the gradient.

    ``done``: steps that ``checkpoint`` has seen.
    """
    prompts = load_prompts(config.prompts.train)
    parts = build_parts(config)
    model = _adapted(parts.policy, config)
    if config.lora.adapter is not None:  # what the run starts from is what is evaluated first
        parts.engine.load_weights(merged_weights(model))
    parts.engine.version = done
    folder.mkdir(parents=True, exist_ok=True)
    save_resolved(config, folder / CONFIG_FILE)
    evaluated = resumed and step_path(folder, 0, "eval_before").exists()
    if config.evaluation.enabled and not evaluated:
        evaluate(parts, config, folder, "eval_before", 0)
    discard_steps_after(folder, done)

    with (
        MetricsWriter(folder / METRICS_FILE, done if resumed else None) as writer,
        LiveView(config.trainer.steps, read_metrics(folder / METRICS_FILE)) as view,
        Collector(parts, model, prompts, config) as collector,
    ):

        def report(step: int, metrics: dict[str, float]) -> None:
            metrics = {**metrics, **collector.speed}
            writer.write(step, metrics)
            if step % config.trainer.log_every == 0 or step == config.trainer.steps:
                view.step(step, metrics)

        trainer = DualARTrainer(
            model,
            parts.tokenizer,
            config,
            folder / CHECKPOINTS,
            collector,
            lambda record: write_step(step_path(folder, record.step), record),
            report,
            learners,
        )
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)

    if config.evaluation.enabled:
        parts.engine.wake()
        parts.engine.load_weights(merged_weights(model))
        _finish_evaluation(parts, config, folder)
    parts.engine.close()
    parts.judges.close()
    Console().print(f"report: {write_report(folder)}", markup=False, soft_wrap=True)


def _follow(config: RunConfig, folder: Path, checkpoint: Path | None, learners: Learners) -> None:
    """Another learner's part: its share of each step's gradient."""
    policy, tokenizer = load_for_run(config.model)
    model = _adapted(policy, config)

    def attend(step: int) -> None:
        """Give what this learner has of the weights that the first one hands to the engine."""
        if config.cluster.shard:
            for _layer in merging(model):
                pass

    if config.lora.adapter is not None:
        attend(0)
    trainer = DualARTrainer(
        model, tokenizer, config, folder / CHECKPOINTS, attend, lambda _: None, lambda *_: None, learners
    )
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if config.evaluation.enabled:
        attend(config.trainer.steps)


def _adapted(policy: DualARForCausalLM, config: RunConfig) -> PeftModel:
    model = add_adapter(policy, config.lora, derive_seed(config.seed, "adapter"))
    if config.cluster.shard:
        shard_frozen(model)
    return model


def _finish_evaluation(parts: Parts, config: RunConfig, folder: Path) -> None:
    evaluate(parts, config, folder, "eval_after", config.trainer.steps)
    evaluation = compare_stored(config, folder, parts.judges, config.trainer.steps)
    Console().print(before_after_table(evaluation.rows))


def _begin(
    config: RunConfig, folder: Path, resume: Path | None, learners: Learners
) -> tuple[Path | None, int]:
    """The checkpoint that training goes on from and the steps done at it, after all checks; None and 0."""
    check_amounts(config, load_prompts(config.prompts.train), learners.size)
    if resume:
        return _checkpoint(folder, config)
    check_fresh(folder)
    return None, 0


def check_fresh(folder: Path) -> None:
    """Raise `RunFolderError` where ``folder`` holds a run."""
    if (folder / METRICS_FILE).exists():
        raise RunFolderError(f"{folder}: holds a run already; add --resume, or choose another name=")


def check_amounts(config: RunConfig, prompts: Sequence[Prompt], learners: int) -> None:
    """Refuse more prompts a step, or in the evaluation, than the files hold, and ``learners`` that can't be.

    Raises `ConfigError`.
    """
    trainer = config.trainer
    check_ahead(config)
    several = learners > 1
    if config.cluster.shard and not several:
        raise ConfigError("cluster.shard: a single learner has nobody to share with; leave it out")
    if several and uses_vllm(config.rollouts) and not config.rollouts.workers:
        raise ConfigError(
            "rollouts.workers: 0, but engine vllm can't run in a process that is one of several learners; "
            "set it to 1 or more, or rollouts.engine=torch"
        )
    if trainer.prompts_per_step > len(prompts):
        raise ConfigError(
            f"trainer.prompts_per_step: {trainer.prompts_per_step}, but {config.prompts.train} has only "
            f"{len(prompts)} prompts; lower it"
        )
    rollouts = trainer.prompts_per_step * config.rollouts.group_size
    if learners > rollouts:
        raise ConfigError(
            f"cluster.learners: {learners}, but a step has only {rollouts} rollouts (prompts_per_step x "
            "group_size); use fewer"
        )
    if config.evaluation.enabled and len(load_prompts(config.prompts.heldout)) < config.evaluation.prompts:
        raise ConfigError(
            f"evaluation.prompts: {config.evaluation.prompts}, but {config.prompts.heldout} has only "
            f"{len(load_prompts(config.prompts.heldout))}; lower it"
        )


def _checkpoint(folder: Path, config: RunConfig) -> tuple[Path | None, int]:
    """The last whole checkpoint and the steps done at it; None and 0 for a run that hadn't saved any."""
    began = load_config(folder / CONFIG_FILE)
    if config_hash(began) != config_hash(config):
        raise RunFolderError(
            f"{folder}: its {CONFIG_FILE} differs from this configuration; resume without changes, "
            "or start a run of another name"
        )
    last = last_checkpoint(folder)
    return (last[0], last[1] // config.trainer.num_iterations) if last else (None, 0)
