"""TRL's GRPO trainer for two autoregressive models: our rollouts go in, our loss comes out.

TRL keeps the loop, iterations over one set of rollouts, optimiser, checkpoints and trackers. Five methods are
replaced: the sampler, generation with scoring, the training step (micro-batches of so many tokens), the loss,
and the log. What several learners do together is in `rl.trainer.learners`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from peft import PeftModel
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import PreTrainedTokenizerBase, PrinterCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from rl.errors import RewardError
from rl.metrics import reward_metrics
from rl.policy.likelihood import Likelihood, likelihood_of_turns
from rl.policy.modeling import DualARForCausalLM
from rl.policy.turns import TurnRows, sampled_logprobs, turns_of
from rl.schema import RunConfig
from rl.seeds import derive_seed
from rl.trainer.adapter import base_of, write_base
from rl.trainer.learners import ALONE, Learners
from rl.trainer.micro_batches import micro_batches
from rl.trainer.mismatch import mismatch_metrics, mismatch_sums, stale_share
from rl.trainer.objective import (
    ObjectiveSettings,
    OldLogprobs,
    dual_ar_loss,
    flat_groups,
    group_advantages,
)
from rl.trainer.schedule import learning_rate_factor
from rollouts.store import StepRecord
from rollouts.types import Rollout

Collect = Callable[[int], StepRecord | None]
Report = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class Hand:
    """A learner's share of a step: rollouts and their ``advantages``, float64 ``[B]``, NaN where left out."""

    rollouts: list[Rollout]
    advantages: np.ndarray


class DualARTrainer(GRPOTrainer):
    """Trains the adapter of ``model`` on what ``collect(step)`` brings, once for each step, from 1.

    ``keep(record)`` gets each step's record once it has its advantages; ``report(step, metrics)`` the
    metrics of docs/run_folder.md when the step is done. Checkpoints go under ``folder``.

    Of several ``learners`` each has a trainer of its own. Only the first one's ``collect`` brings a record,
    which is dealt out; the others' returns None. Only the first keeps, reports and saves.

    Raises `RewardError` in training, after a checkpoint, when more than ``rewards.max_missing`` of a step's
    totals are missing; `StaleRolloutError` when an older policy sampled and ``trainer.importance_cap`` is
    null.
    """

    def __init__(
        self,
        model: PeftModel,
        tokenizer: PreTrainedTokenizerBase,
        config: RunConfig,
        folder: Path,
        collect: Collect,
        keep: Callable[[StepRecord], None],
        report: Report,
        learners: Learners = ALONE,
    ) -> None:
        trainer = config.trainer
        self.learners = learners
        self.run = config
        self.tokenizer = tokenizer
        self.base = base_of(cast(DualARForCausalLM, model.get_base_model()))
        self.collect, self.keep, self.report = collect, keep, report
        self.record: StepRecord | None = None
        self.hand = Hand([], np.empty(0))
        self.samples: list[list[TurnRows]] = []
        self.sums: dict[str, Tensor] = {}
        self.starts: dict[int, tuple[Tensor, Tensor]] = {}
        self.of_record: dict[str, float] = {}
        self.started = 0.0
        self.weights: ObjectiveSettings = ObjectiveSettings(
            gamma=trainer.gamma,
            beta=trainer.beta,
            epsilon=trainer.epsilon,
            epsilon_high=trainer.epsilon if trainer.epsilon_high is None else trainer.epsilon_high,
            normaliser=float(
                trainer.prompts_per_step * config.rollouts.group_size * config.rollouts.max_frames
            ),
            importance_cap=trainer.importance_cap,
        )
        optimizer = torch.optim.AdamW(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lr=trainer.learning_rate,
            weight_decay=trainer.weight_decay,
        )
        scheduler = LambdaLR(
            optimizer, lambda done: learning_rate_factor(done // trainer.num_iterations, trainer)
        )
        super().__init__(
            model=model,
            reward_funcs=_scored_already,
            args=_arguments(config, folder),
            train_dataset=Dataset.from_dict({"prompt": [""]}),
            processing_class=tokenizer,
            optimizers=(optimizer, scheduler),
        )
        self.remove_callback(PrinterCallback)
        # accelerate shall not wrap it in DDP, which sees nothing of a loss that isn't computed in `forward`
        cast(Any, self.model)._is_accelerate_prepared = True

    @property
    def step(self) -> int:
        """The step in progress, from 1; `state.global_step` counts optimiser steps."""
        return self.state.global_step // self.num_iterations + 1

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler[int]:
        return _StepSampler(self)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Tensor]:
        self.started = time.monotonic()
        if not self.learners.first:
            self.collect(self.step)
        self.hand = self.learners.deal(self._hands)
        self.sums, self.starts = {}, {}
        policy = cast(DualARForCausalLM, cast(PeftModel, self.model).get_base_model())
        self.samples = [turns_of(rollout, self.tokenizer, policy.config) for rollout in self.hand.rollouts]
        torch.manual_seed(self.learners.seed(derive_seed(self.run.seed, "learner", self.step)))  # of dropout
        return {
            "index": torch.arange(len(self.hand.rollouts)),
            "advantages": torch.from_numpy(self.hand.advantages).float(),
        }

    def _hands(self) -> list[Hand]:
        """The step's rollouts, sampled, scored and kept, in a block for each learner."""
        group = self.run.rollouts.group_size
        record = self.collect(self.step)
        assert record is not None, "the first learner's has rollouts"
        totals = torch.from_numpy(record.total)
        flat = flat_groups(totals, group, self.run.trainer.min_group_std)
        record.advantages = group_advantages(totals, group).masked_fill(flat, torch.nan).numpy()
        self.keep(record)
        self._check_missing(record)
        corrected = self.weights.importance_cap is not None
        self.of_record = {
            "learner/dropped_groups": float(flat.sum() / group),
            "rollout/stale": stale_share(record.rollouts, self.step, corrected),
        }
        self.record = record
        return [
            Hand([record.rollouts[place] for place in block], record.advantages[block])
            for block in self.learners.blocks(len(record.rollouts))
        ]

    def _clip_grad_norm(self, model: torch.nn.Module) -> Any:
        """Of the gradient of all learners' rollouts."""
        self.learners.add_gradients(parameter for parameter in model.parameters() if parameter.requires_grad)
        return super()._clip_grad_norm(model)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """What TRL saves, and beside the adapter to which policy it belongs."""
        super()._save(output_dir, state_dict)
        if self.learners.first:
            write_base(Path(output_dir or str(self.args.output_dir)), self.base)

    def _save_rng_state(self, output_dir: str) -> None:
        """Nothing: each step seeds its generator anew, so that a checkpoint fits any number of learners."""

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Nothing: see `_save_rng_state`."""

    def store_flos(self) -> None:
        """Nothing: TRL would count tokens that aren't there, in a call that the first learner makes alone."""

    def _check_missing(self, record: StepRecord) -> None:
        missing = np.isnan(record.total)
        limit = self.run.rewards.max_missing
        if missing.mean() <= limit:
            return
        self._save_checkpoint(self.model, None)
        reason = record.reasons[int(np.flatnonzero(missing)[0])].get("total", "no reason given")
        raise RewardError(
            f"step {record.step}: {missing.mean():.0%} of the rewards are missing, more than "
            f"rewards.max_missing={limit:g}; first: {reason}. Mend the node and go on with --resume"
        )

    def training_step(
        self, model: torch.nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """The gradient of one optimiser step over its rollouts; returns the loss."""
        model.train()
        prepared = self._prepare_inputs(inputs)
        order = prepared["index"].argsort()  # samples of a prompt beside each other
        index, advantages = prepared["index"][order], prepared["advantages"][order]
        total = torch.zeros((), device=self.accelerator.device)
        samples = [self.samples[place] for place in index.tolist()]
        batches = micro_batches(samples, self.run.trainer.micro_batch_tokens)
        spare = self.learners.most(len(batches)) - len(batches) if self.run.cluster.shard else 0
        for places in batches:
            loss = self._compute_loss(model, {"index": index[places], "advantages": advantages[places]})
            self.accelerator.backward(loss)
            total += loss.detach()
        sums = dict(self.sums)
        for _ in range(spare):  # they count for nothing: others still need this share of the layers
            loss = self._compute_loss(model, {"index": index[places], "advantages": advantages[places]})
            self.accelerator.backward(0.0 * loss)
        self.sums = sums
        self._step += 1
        return total

    def _compute_loss(self, model: torch.nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        places = inputs["index"].tolist()
        adapted = cast(PeftModel, self.accelerator.unwrap_model(model))
        new = self._likelihood(adapted, places)
        reference = None
        if self.weights.beta > 0:
            with torch.no_grad(), adapted.disable_adapter():
                reference = self._likelihood(adapted, places)
        advantages = inputs["advantages"].to(new.slow.device)
        sampler = _padded([sampled_logprobs(self.hand.rollouts[place]) for place in places], new)
        if self.state.global_step % self.num_iterations == 0:  # before the first update on these rollouts
            self._add(mismatch_sums(new, sampler))
            self.starts |= zip(places, _unpadded(new), strict=True)
        start = _padded([self.starts[place] for place in places], new)
        loss, sums = dual_ar_loss(new, sampler, advantages, self.weights, reference, start)
        self._add({"loss": loss.detach(), **sums})
        return loss

    def _add(self, sums: dict[str, Tensor]) -> None:
        """Add to the sums of the step so far; of what is named ``max_`` the larger stays."""
        for name, value in sums.items():
            so_far = self.sums.get(name, torch.zeros_like(value))
            self.sums[name] = torch.maximum(so_far, value) if name.startswith("max_") else so_far + value

    def _likelihood(self, adapted: PeftModel, places: list[int]) -> Likelihood:
        return likelihood_of_turns(
            cast(DualARForCausalLM, adapted.get_base_model()),
            [self.samples[place] for place in places],
            self.run.rollouts.temperature,
            self.run.trainer.detach_hidden,
        )

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Report a finished step; TRL's own summary at the end of training passes through."""
        if "grad_norm" in logs:
            sums = self.learners.add(self.sums)
            if self.record is not None:
                metrics = self._metrics_of_step(logs, sums, self.record)
                self.report(self.state.global_step // self.num_iterations, metrics)
                logs = {**logs, **metrics}
        super().log(logs, start_time)
        self.state.log_history.clear()  # it would grow with the run, and so would every checkpoint

    def _metrics_of_step(
        self, logs: dict[str, float], sums: dict[str, float], record: StepRecord
    ) -> dict[str, float]:
        metrics = reward_metrics(record.values, record.total, record.gated, record.group_ids)
        metrics |= {
            "learner/loss": sums["loss"] / self.num_iterations,
            "learner/grad_norm": float(logs["grad_norm"]),
            "learner/learning_rate": logs["learning_rate"],
        }
        for ar in ("slow", "fast"):
            count = sums[f"count_{ar}"]
            for name in ("kl", "entropy", "clip", "capped"):
                if f"{name}_{ar}" in sums:
                    metrics[f"learner/{name}_{ar}"] = sums[f"{name}_{ar}"] / count if count else float("nan")
        metrics |= mismatch_metrics(sums) | self.of_record
        metrics["rollout/frames"] = float(np.mean([len(r.codes) for r in record.rollouts]))
        metrics["rollout/length_stopped"] = float(
            np.mean([rollout.finish_reason == "length" for rollout in record.rollouts])
        )
        metrics["time/step_s"] = time.monotonic() - self.started
        return metrics


class _StepSampler(Sampler[int]):
    """What TRL fetches, from the step that training stands at: the dataset's one row, over and over.

    TRL fetches a step's rows, of all learners, again for every iteration. The trainer looks up its prompts by
    itself.
    """

    def __init__(self, trainer: DualARTrainer) -> None:
        self.trainer = trainer
        self.rows = cast(int, cast(GRPOConfig, trainer.args).generation_batch_size) * trainer.num_iterations

    def __iter__(self) -> Iterator[int]:
        steps_left = self.trainer.run.trainer.steps - self.trainer.step + 1
        yield from repeat(0, steps_left * self.rows)

    def __len__(self) -> int:
        return self.trainer.run.trainer.steps * self.rows


def _arguments(config: RunConfig, folder: Path) -> GRPOConfig:
    trainer = config.trainer
    rollouts = trainer.prompts_per_step * config.rollouts.group_size
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=trainer.steps * trainer.num_iterations,
        num_generations=config.rollouts.group_size,
        num_iterations=trainer.num_iterations,
        per_device_train_batch_size=rollouts,
        gradient_accumulation_steps=1,
        max_completion_length=config.rollouts.max_frames,
        temperature=config.rollouts.temperature,
        max_grad_norm=trainer.max_grad_norm,
        gradient_checkpointing=config.model.gradient_checkpointing,
        save_steps=trainer.save_every * trainer.num_iterations,
        logging_steps=trainer.num_iterations,
        report_to=trainer.report_to or "none",
        seed=derive_seed(config.seed, "learner"),
        ignore_data_skip=True,
        disable_tqdm=True,
        bf16=False,
        use_cpu=not torch.cuda.is_available(),
    )


def _scored_already(**_: Any) -> list[float | None]:
    raise AssertionError("the reward graph scores; TRL only needs to be given a function")


def _unpadded(like: Likelihood) -> list[tuple[Tensor, Tensor]]:
    """The log-probs of each rollout, without gradient."""
    rows = zip(like.slow.detach(), like.slow_mask, like.fast.detach(), like.frame_mask, strict=True)
    return [(slow[ends], fast[frames]) for slow, ends, fast, frames in rows]


def _padded(rows: Sequence[tuple[Tensor, Tensor]], like: Likelihood) -> OldLogprobs:
    """The log-probs of each rollout, padded to the shapes of ``like``."""
    slow, fast = torch.zeros_like(like.slow), torch.zeros_like(like.fast)
    for row, (of_slow, of_fast) in enumerate(rows):
        slow[row, : len(of_slow)] = of_slow
        fast[row, : len(of_fast)] = of_fast
    return OldLogprobs(slow.detach(), fast.detach())
