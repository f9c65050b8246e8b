"""The command that makes the embedded voice, from the corpus to the prompts, at a fiftieth of its size."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from rl.codec.loading import load_codec
from rl.policy.likelihood import likelihood_of_turns
from rl.policy.loading import load_policy
from rl.policy.turns import turns_of
from rl.prompts_file import load_prompts
from rollouts.torch_engine import TorchEngine
from rollouts.types import SamplingParams
from scripts.tiny import train_policy

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_whole_command_makes_a_voice_that_speaks(tmp_path: Path) -> None:
    steps = ["--codec-steps", "3", "2", "--policy-steps", "3", "2"]
    places = ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "voice")]
    command = [sys.executable, str(ROOT / "scripts/build_tiny.py"), "--utterances", "500", *steps, *places]
    subprocess.run(command, check=True, cwd=tmp_path)
    train, heldout = (
        load_prompts(str(tmp_path / f"voice/prompts/{name}.jsonl")) for name in ("train", "heldout")
    )
    assert not {prompt.spoken for prompt in train} & {prompt.spoken for prompt in heldout}
    engine = TorchEngine(*load_policy(str(tmp_path / "voice/policy")))
    (rollout,) = engine.generate(heldout[:1], 1, SamplingParams(max_frames=20), seed=0)
    codec = load_codec(str(tmp_path / "voice/codec"))
    audio = codec.decode(rollout.codes)
    assert audio.shape == (len(rollout.codes) * codec.sample_rate / codec.frame_rate,)
    assert np.isfinite(audio).all()


def test_rescaled_norms_stand_for_a_temperature(tmp_path: Path) -> None:
    """What is kept is fp16: log-probs move by the rounding alone."""
    shutil.copytree(ROOT / "rl/assets/tiny/policy", tmp_path / "policy")
    policy, tokenizer = load_policy(str(tmp_path / "policy"))
    engine = TorchEngine(policy, tokenizer)
    rollouts = engine.generate(load_prompts("tiny:heldout")[:2], 2, SamplingParams(max_frames=20), seed=0)
    turns = [turns_of(rollout, tokenizer, policy.config) for rollout in rollouts]
    with torch.no_grad():
        before = likelihood_of_turns(policy, turns, 0.6)
        train_policy.make_usual(tmp_path / "policy", temperature=0.6)
        after = likelihood_of_turns(load_policy(str(tmp_path / "policy"))[0], turns, 1.0)
        unscaled = likelihood_of_turns(policy, turns, 1.0)
    for ar in ("slow", "fast"):
        np.testing.assert_allclose(getattr(after, ar), getattr(before, ar), atol=0.01)
        assert (getattr(unscaled, ar) - getattr(before, ar)).abs().max() > 0.1
