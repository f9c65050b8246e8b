"""From sampled codes to a scored record: decode, round to what the store keeps, score."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from rich.progress import track

from rewards.graph import RewardGraph
from rewards.types import Clip, Scores
from rl.codec.base import Codec
from rl.references import read_voice
from rl.threads import pulled
from rollouts.store import Split, StepRecord, quantise
from rollouts.types import Prompt, Rollout

DECODED_AT_ONCE = 16
"""Rollouts: few enough that the first are scored while the others are decoded."""


def score_rollouts(
    rollouts: Iterable[Rollout],
    prompts: Sequence[Prompt],
    codec: Codec,
    graph: RewardGraph,
    *,
    step: int,
    split: Split,
    config_hash: str,
    progress: str | None = None,
) -> StepRecord:
    """Decode and score ``rollouts`` of ``prompts`` as they come, in any order.

    A thread of its own takes them, so that sampling never waits for the decoder or the graph. The record has
    them as `record_of` says. ``progress``: what a bar on the terminal says it waits for; None shows none.
    """
    came: list[tuple[Rollout, np.ndarray]] = []
    with pulled(rollouts, DECODED_AT_ONCE) as coming, graph.stream() as stream:
        while some := stream.attend(coming).items:
            for rollout, wave in zip(some, codec.decode_batch([r.codes for r in some]), strict=True):
                came.append((rollout, quantise(wave)))
                stream.submit(clip_of(*came[-1], codec.sample_rate))
            coming = coming.result().following
        finished = stream.rows()
        if progress:
            finished = iter(track(finished, progress, len(came), update_period=1.0))
        scored = dict(finished)
    scores = Scores.of([scored[i] for i in range(len(came))], graph.output_names)
    return record_of(
        came, scores, prompts, codec.sample_rate, step=step, split=split, config_hash=config_hash
    )


def record_of(
    came: Sequence[tuple[Rollout, np.ndarray]],
    scores: Scores,
    prompts: Sequence[Prompt],
    sample_rate: int,
    *,
    step: int,
    split: Split,
    config_hash: str,
) -> StepRecord:
    """Rollouts of ``prompts`` with their audio, and ``scores`` in the same order, as one record.

    It has them prompt by prompt, the samples of each in their order. Its advantages are NaN: only the learner
    has any.
    """
    groups = {prompt.id: group for group, prompt in enumerate(prompts)}
    order = sorted(range(len(came)), key=lambda i: (groups[came[i][0].prompt.id], came[i][0].sample_index))
    ordered = [came[i] for i in order]
    return StepRecord(
        step=step,
        split=split,
        config_hash=config_hash,
        sample_rate=sample_rate,
        rollouts=[rollout for rollout, _ in ordered],
        audio=[wave if np.isfinite(wave).all() else None for _, wave in ordered],
        group_ids=np.array([groups[rollout.prompt.id] for rollout, _ in ordered]),
        values={name: column[order] for name, column in scores.values.items()},
        total=scores.total[order],
        advantages=np.full(len(ordered), np.nan),
        gated=scores.gated[order],
        reasons=[scores.reasons[i] for i in order],
        details=[scores.details[i] for i in order],
        submitted=np.array(order, dtype=np.int64),
    )


def clip_of(rollout: Rollout, audio: np.ndarray, sample_rate: int) -> Clip:
    """What the reward nodes see of ``rollout``, decoded to ``audio``. Raises `PromptError`."""
    clip = clip_of_prompt(rollout.prompt, audio, sample_rate)
    meta = {**clip.meta, "frames": len(rollout.codes), "finish_reason": rollout.finish_reason}
    return replace(clip, meta=meta)


def clip_of_prompt(prompt: Prompt, audio: np.ndarray, sample_rate: int) -> Clip:
    """What the reward nodes see of ``audio`` that should say ``prompt``. Raises `PromptError`.

    The voice asked for is read from the file ``reference_audio`` of the prompt's meta, where it names one.
    """
    reference, rate = None, None
    if "reference_audio" in prompt.meta:
        reference, rate = read_voice(prompt.meta["reference_audio"])
    voices = {name: read_voice(path) for name, path in prompt.meta.get("voices", {}).items()}
    return Clip(audio, sample_rate, prompt.text, prompt.spoken, reference, rate, dict(prompt.meta), voices)
