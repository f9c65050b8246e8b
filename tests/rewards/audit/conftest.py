"""Rollouts of real speech, and a module of small reward functions, some of them with a fault planted in."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from rewards.audit.clips import ClipSet
from rewards.types import Clip
from rollouts.store import quantise
from tests.rewards.audit.browser import browser as browser

GROUPS, SAMPLES = 5, 8
FUNCTIONS = '''
import numpy as np
from rewards.audio import level_dbfs
from rewards.audit.nuisance import silent_share
from rewards.node import NodeError

CALLS = []

def seconds(clip):
    return len(clip.audio) / clip.sample_rate

def honest(clip):
    """Said once: what the take deserves, less what is too much or too little of it."""
    CALLS.append("honest")
    ratio = seconds(clip) / clip.meta["seconds"]
    return clip.meta["take"] * min(ratio, 1 / ratio) ** 2 - 2 * (silent_share(clip.audio) > 0.8)

def careless(clip):
    """A confidence that only asks whether the words are in it."""
    return clip.meta["take"] * min(1.0, seconds(clip) / clip.meta["seconds"])

def silence_lover(clip):
    return silent_share(clip.audio)

def wordy(clip):
    """A judge with points for length."""
    return 30 + 20 * seconds(clip) + clip.meta["take"]

def fair(clip):
    return 100 * clip.meta["take"]

def constant(clip):
    return 0.7

def patchy(clip):
    return float("nan") if clip.meta["number"] % 10 == 3 else clip.meta["take"]

def noisy(clip):
    CALLS.append("noisy")
    return 20 * clip.meta["take"] + 100 * np.random.default_rng(len(CALLS)).random()
'''


@pytest.fixture(scope="session", autouse=True)
def planted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The module `planted`, on the path of this process."""
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.py").write_text(FUNCTIONS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="session")
def takes(speech: list[Clip]) -> ClipSet:
    """8 takes of each of 5 sentences: other levels, a little noise, and pauses of other lengths."""
    random = np.random.default_rng(7)
    clips, groups = [], []
    for group, clip in enumerate(speech[:GROUPS]):
        for _ in range(SAMPLES):
            pads = [np.zeros(int(n), np.float32) for n in random.integers(100, 6000, 2)]
            audio = np.concatenate([pads[0], clip.audio * random.uniform(0.4, 0.9), pads[1]])
            audio = audio + 1e-3 * random.standard_normal(len(audio))
            meta = {
                "take": float(random.random()),
                "seconds": len(audio) / clip.sample_rate,
                "number": len(clips),
                "language": "en" if group % 2 else "de",
            }
            text = f"<|speaker:0|>{'[slow] ' if group == 0 else ''}{clip.text}"
            clips.append(
                Clip(
                    quantise(audio),
                    clip.sample_rate,
                    text,
                    clip.spoken,
                    clip.reference,
                    clip.sample_rate,
                    meta,
                )
            )
            groups.append(group)
    count = len(clips)
    return ClipSet(
        source="takes",
        ids=[f"clip-{i}" for i in range(count)],
        clips=clips,
        prompts=[f"prompt-{group}" for group in groups],
        groups=np.array(groups),
        steps=np.arange(count) % SAMPLES,
        batches=[np.arange(count)],
    )


@pytest.fixture
def manifest(takes: ClipSet, tmp_path: Path) -> Callable[[Mapping[str, Any]], tuple[Path, Path]]:
    """Writes the takes as FLAC files with a manifest, and a recipe beside it; returns both paths."""

    def write(rewards: Mapping[str, Any]) -> tuple[Path, Path]:
        rows = []
        for name, clip, step in zip(takes.ids, takes.clips, takes.steps.tolist(), strict=True):
            soundfile.write(tmp_path / f"{name}.flac", clip.audio, clip.sample_rate, subtype="PCM_16")
            row = {"id": name, "audio": f"{name}.flac", "text": clip.text, "group": clip.spoken, "step": step}
            rows.append(json.dumps({**row, **clip.meta}))
        (tmp_path / "takes.jsonl").write_text("\n".join(rows) + "\n")
        (tmp_path / "recipe.yaml").write_text(json.dumps(rewards))
        return tmp_path / "takes.jsonl", tmp_path / "recipe.yaml"

    return write
