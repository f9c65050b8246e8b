"""The command that makes the embedded voice, from the corpus to the prompts, at a hundredth of its size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rl.codec.loading import load_codec
from rl.policy.loading import load_policy
from rl.prompts_file import load_prompts
from rollouts.torch_engine import TorchEngine
from rollouts.types import SamplingParams

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
