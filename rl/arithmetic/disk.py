"""How much a whole run writes."""

from __future__ import annotations

from dataclasses import dataclass

from rl.arithmetic.memory import Plan
from rl.arithmetic.shapes import adapter_parameters

TYPICAL_AUDIO = 0.6
"""FLAC's size over 16-bit PCM's for speech; silence takes less, noise about 1."""
TYPICAL_LENGTH = 0.5
"""Mean length of a rollout over the longest that is allowed; ours."""
PER_ROLLOUT = 2048
"""Bytes of texts, values and details of a row, round."""


@dataclass(frozen=True)
class Written:
    """Bytes of a whole run. ``rollouts``: if all were of full length, and FLAC and zstd saved nothing."""

    rollouts: int
    typical_rollouts: int
    checkpoints: int

    @property
    def most(self) -> int:
        return self.rollouts + self.checkpoints

    @property
    def typical(self) -> int:
        return self.typical_rollouts + self.checkpoints


def written(plan: Plan, tokenizer: int = 0) -> Written:
    """What a run writes from its first step to its last, both evaluations with it.

    A checkpoint has the adapter in float32, AdamW's two moments of it, and the ``tokenizer`` (bytes); all are
    kept.
    """
    run = plan.run
    clips = plan.rollouts * run.trainer.steps
    if run.evaluation.enabled:
        clips += 2 * run.evaluation.prompts * run.evaluation.samples
    frames = plan.frames
    codes, audio = 8 * plan.policy.num_codebooks, 2 * plan.codec.hop
    most = clips * (frames * (codes + audio) + PER_ROLLOUT)
    typical = clips * (TYPICAL_LENGTH * frames * (codes + TYPICAL_AUDIO * audio) + PER_ROLLOUT)
    saved = -(-run.trainer.steps // run.trainer.save_every)
    each = 12 * adapter_parameters(plan.policy, run.lora) + tokenizer
    return Written(most, int(typical), saved * each)
