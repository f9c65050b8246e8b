"""Each step's rollouts, sampled, decoded and scored; if wanted, while the learner learns from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from peft import PeftModel

from rl.config import config_hash
from rl.errors import ConfigError
from rl.parts import Parts
from rl.schema import RunConfig
from rl.scoring import score_rollouts
from rl.seeds import derive_seed, step_prompts
from rl.threads import one_thread
from rl.trainer.adapter import merged_weights
from rollouts.engine import stream
from rollouts.store import StepRecord
from rollouts.types import Prompt, Rollout, SamplingParams

Collected = tuple[StepRecord, dict[str, float]]
"""A step's rollouts, and how fast they came: metrics of docs/run_folder.md."""


class Collector:
    """Brings the learner the rollouts of each step, once it has handed its weights to the engine.

    With ``trainer.steps_ahead`` the call for a step returns as soon as its rollouts are there, and those of
    the next step are collected in a thread meanwhile, by the weights handed over in this call. Not after a
    step that ends in a checkpoint: what follows one depends on nothing else, so that a resume repeats it.

    A context manager: leaving it gives up what is being collected. ``speed``: metrics of the last call.
    """

    def __init__(self, parts: Parts, model: PeftModel, prompts: Sequence[Prompt], config: RunConfig) -> None:
        self.parts, self.model, self.prompts, self.config = parts, model, prompts, config
        self.speed: dict[str, float] = {}
        self._coming: Future[Collected] | None = None
        self._thread = one_thread("ahead")
        self._left = threading.Event()

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: Any) -> None:
        self._left.set()
        self._thread.shutdown()

    def __call__(self, step: int) -> StepRecord:
        """The rollouts of ``step``, which follows that of the last call. Raises what collecting them did."""
        start = time.monotonic()
        coming, self._coming = self._coming, None
        collected = coming.result() if coming else None
        self.parts.engine.wake()
        self.parts.engine.load_weights(merged_weights(self.model))
        if collected is None:
            collected = self._collect(step)
        trainer = self.config.trainer
        if trainer.steps_ahead and step < trainer.steps and step % trainer.save_every:
            self._coming = self._thread.submit(self._collect, step + 1)
        record, speed = collected
        self.speed = {**speed, "time/wait_s": time.monotonic() - start}
        return record

    def _collect(self, step: int) -> Collected:
        parts, config = self.parts, self.config
        chosen = step_prompts(config.seed, step, len(self.prompts), config.trainer.prompts_per_step)
        prompts = parts.voices.encoded([self.prompts[index] for index in chosen])
        sampling = SamplingParams(config.rollouts.temperature, config.rollouts.max_frames)
        seed = derive_seed(config.seed, "rollouts", step)
        speed: dict[str, float] = {}
        start = time.monotonic()

        def sampled() -> Iterator[Rollout]:
            frames = 0
            parts.engine.wake()
            for rollout in stream(parts.engine, prompts, config.rollouts.group_size, sampling, seed):
                if self._left.is_set():
                    raise _GivenUp
                frames += len(rollout.codes)
                yield rollout
            speed["time/rollout_s"] = time.monotonic() - start
            speed["rollout/frames_per_s"] = frames / speed["time/rollout_s"]
            speed.update(parts.engine.stats.metrics())
            parts.engine.sleep()

        record = score_rollouts(
            sampled(),
            prompts,
            parts.codec,
            parts.graph,
            step=step,
            split="train",
            config_hash=config_hash(config),
        )
        speed["time/rewards_s"] = time.monotonic() - start - speed["time/rollout_s"]
        return record, speed


class _GivenUp(Exception):
    """Nobody waits for the rollouts any more."""


def check_ahead(config: RunConfig) -> None:
    """Refuse ``trainer.steps_ahead`` beside settings that it can't go with. Raises `ConfigError`."""
    trainer = config.trainer
    if not trainer.steps_ahead:
        return
    if trainer.importance_cap is None:
        raise ConfigError(
            "trainer.importance_cap: null, but with trainer.steps_ahead=1 rollouts are one policy old, which "
            "it corrects for; set it, say to 2"
        )
    if trainer.save_every == 1:
        raise ConfigError(
            "trainer.save_every: 1, but trainer.steps_ahead=1 pauses after each checkpoint; raise it, or set "
            "trainer.steps_ahead=0"
        )
    if config.lora.dropout > 0:
        raise ConfigError(
            f"lora.dropout: {config.lora.dropout:g}, but with trainer.steps_ahead=1 reward nodes run beside "
            "the learner, and may draw from its random numbers; set one of both to 0"
        )
