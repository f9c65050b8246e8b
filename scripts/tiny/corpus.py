"""The pre-training corpus of the embedded voice: an uncurated mixture, as web corpora are.

Each utterance carries what its transcript claims (speaker tag, style tag, text) and what was really
rendered: some recordings are noisy and reverberant, some are of the other speaker, some ignore the style.
A policy trained on it has acoustic modes to choose from, and a reward has something to select.
"""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from rl.codec.tiny import features, mel_filters
from scripts.tiny.sentences import sentences, written
from scripts.tiny.teacher import SPEAKERS, STYLES, degrade, speak

NOISY, WRONG_SPEAKER, WRONG_STYLE, TAGGED = 0.34, 0.12, 0.2, 0.4


@dataclass(frozen=True)
class Utterance:
    """What the transcript says and what the recording is."""

    text: str
    spoken: str
    speaker: int
    style: str | None
    real_speaker: int
    real_style: str | None
    noisy: bool


def draw(spoken: str, rng: np.random.Generator) -> Utterance:
    """One utterance of the mixture."""
    speaker = int(rng.integers(len(SPEAKERS)))
    style = STYLES[rng.integers(len(STYLES))] if rng.random() < TAGGED else None
    other = int((speaker + rng.integers(1, len(SPEAKERS))) % len(SPEAKERS))
    return Utterance(
        text=f"<|speaker:{speaker}|>" + (f"[{style}] " if style else "") + written(spoken),
        spoken=spoken,
        speaker=speaker,
        style=style,
        real_speaker=other if rng.random() < WRONG_SPEAKER else speaker,
        real_style=None if rng.random() < WRONG_STYLE else style,
        noisy=bool(rng.random() < NOISY),
    )


def render(utterance: Utterance, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Audio and f0 of the utterance as it was really recorded (see :func:`scripts.tiny.teacher.speak`)."""
    audio, f0 = speak(written(utterance.spoken), utterance.real_speaker, utterance.real_style, rng)
    if utterance.noisy:
        audio = degrade(audio, float(rng.uniform(-4.0, 4.0)), float(rng.uniform(0.3, 0.6)), rng)
    return audio, f0


def _shard(
    job: tuple[int, list[str], int, bool],
) -> tuple[list[Utterance], list[np.ndarray], list[np.ndarray]]:
    first, texts, seed, keep_audio = job
    torch.set_num_threads(1)
    filters = mel_filters()
    utterances, frames, audio_kept = [], [], []
    for offset, spoken in enumerate(texts):
        rng = np.random.Generator(np.random.Philox(key=[seed, first + offset]))
        utterance = draw(spoken, rng)
        audio, f0 = render(utterance, rng)
        rows = features(torch.from_numpy(audio), torch.from_numpy(f0), filters)
        utterances.append(utterance)
        frames.append(rows.numpy().astype(np.float16))
        audio_kept.append(
            (audio.clip(-1, 1) * 32767).astype(np.int16) if keep_audio else np.zeros(0, np.int16)
        )
    return utterances, frames, audio_kept


def build(folder: Path, count: int, with_audio: int, seed: int, workers: int) -> None:
    """Render ``count`` training utterances into ``folder`` (the first ``with_audio`` keep their audio)."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = sentences(count, held_out=False, seed=seed)
    jobs = [(i, texts[i : i + 250], seed, i < with_audio) for i in range(0, count, 250)]
    with ProcessPoolExecutor(workers) as pool:
        shards = list(tqdm(pool.map(_shard, jobs), total=len(jobs), desc="rendering speech", unit="shard"))
    utterances = [u for shard in shards for u in shard[0]]
    frames = [f for shard in shards for f in shard[1]]
    audio = [a for shard in shards for a in shard[2]]
    np.savez(
        folder / "corpus.npz",
        hops=np.array([len(f) for f in frames]),
        features=np.concatenate(frames),
        audio_lengths=np.array([len(a) for a in audio]),
        audio=np.concatenate(audio),
    )
    (folder / "utterances.json").write_text(json.dumps([asdict(u) for u in utterances]))
