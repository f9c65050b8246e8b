"""From sampled codes to a scored record: decode, round to what the store keeps, score."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import soundfile

from rewards.graph import RewardGraph
from rewards.types import Clip
from rl.codec.base import Codec
from rl.errors import PromptError
from rollouts.store import Split, StepRecord, quantise
from rollouts.types import Rollout


def score_rollouts(
    rollouts: list[Rollout],
    codec: Codec,
    graph: RewardGraph,
    *,
    group_size: int,
    step: int,
    split: Split,
    config_hash: str,
) -> StepRecord:
    """Decode and score ``rollouts``, ``group_size`` to a prompt, prompt by prompt.

    The advantages are NaN: only the learner has any.
    """
    audio = [quantise(wave) for wave in codec.decode_batch([rollout.codes for rollout in rollouts])]
    clips = [_clip(rollout, wave, codec) for rollout, wave in zip(rollouts, audio, strict=True)]
    scores = graph.score(clips)
    return StepRecord(
        step=step,
        split=split,
        config_hash=config_hash,
        sample_rate=codec.sample_rate,
        rollouts=rollouts,
        audio=[wave if np.isfinite(wave).all() else None for wave in audio],
        group_ids=np.arange(len(rollouts)) // group_size,
        values=scores.values,
        total=scores.total,
        advantages=np.full(len(rollouts), np.nan),
        gated=scores.gated,
        reasons=scores.reasons,
        details=scores.details,
    )


def _clip(rollout: Rollout, audio: np.ndarray, codec: Codec) -> Clip:
    prompt = rollout.prompt
    meta: dict[str, Any] = {
        **prompt.meta,
        "frames": len(rollout.codes),
        "finish_reason": rollout.finish_reason,
    }
    reference, rate = None, None
    if "reference_audio" in prompt.meta:
        reference, rate = _read_audio(prompt.meta["reference_audio"])
    voices = {name: _read_audio(path) for name, path in prompt.meta.get("voices", {}).items()}
    return Clip(audio, codec.sample_rate, prompt.text, prompt.spoken, reference, rate, meta, voices)


@lru_cache(maxsize=256)
def _read_audio(path: str) -> tuple[np.ndarray, int]:
    try:
        audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise PromptError(f"reference_audio {path}: can't be read ({error}); name an audio file") from error
    return audio.mean(1), rate
