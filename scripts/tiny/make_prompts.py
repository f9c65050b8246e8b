"""Write the embedded prompt sets and the reference clips of their speakers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import soundfile

from scripts.tiny.sentences import sentences, written
from scripts.tiny.teacher import SAMPLE_RATE, SPEAKERS, STYLES, speak

TRAIN, HELD_OUT, STYLED = 2000, 256, 0.25
_REFERENCE_TEXT = "The old captain waited beside the lake and listened to the quiet music of the evening."


def write(folder: Path, seed: int = 11) -> None:
    """``train.jsonl`` and ``heldout.jsonl`` (disjoint sentences) and ``speaker_N.flac`` in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.Philox(key=seed))
    for speaker in range(len(SPEAKERS)):
        audio, _ = speak(_REFERENCE_TEXT, speaker, None, rng)
        soundfile.write(folder / f"speaker_{speaker}.flac", audio.clip(-1, 1), SAMPLE_RATE, subtype="PCM_16")
    for name, count in (("train", TRAIN), ("heldout", HELD_OUT)):
        lines = []
        for i, spoken in enumerate(sentences(count, held_out=name == "heldout", seed=seed)):
            speaker = i % len(SPEAKERS)
            style = STYLES[rng.integers(len(STYLES))] if rng.random() < STYLED else None
            text = f"<|speaker:{speaker}|>" + (f"[{style}] " if style else "") + written(spoken)
            record = {
                "id": f"{name}-{i:04d}",
                "text": text,
                "spoken": spoken,
                "reference_audio": {str(n): f"speaker_{n}.flac" for n in range(len(SPEAKERS))},
                "meta": {"speaker": speaker, "style": style},
            }
            lines.append(json.dumps(record))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
