"""`rl-eval` on recordings whose words and voices are known, against figures worked out here."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from resemblyzer import VoiceEncoder

from rewards.audio import at_level
from rewards.nodes.voiceprint import LEVEL
from rl.cli.eval import main
from rl.policy.loading import EMBEDDED

VOICES = [EMBEDDED / "prompts" / f"speaker_{n}.flac" for n in range(2)]
SAID = "The old captain waited beside the lake and listened to the quiet music of the evening."
RATE = 16000


def wave(speaker: int) -> np.ndarray:
    audio, rate = soundfile.read(VOICES[speaker], dtype="float32")
    assert rate == RATE
    return audio


@pytest.fixture(scope="module")
def encoder() -> VoiceEncoder:
    return VoiceEncoder("cpu", verbose=False)


def cosine(encoder: VoiceEncoder, one: np.ndarray, other: np.ndarray) -> float:
    a, b = (encoder.embed_utterance(at_level(audio, LEVEL)) for audio in (one, other))
    return float(a @ b)


def run(tmp_path: Path, *argv: str) -> dict[str, Any]:
    assert main([*argv, "--out", str(tmp_path / "out")]) == 0
    return json.loads((tmp_path / "out" / "eval.json").read_text())


def figure(result: dict[str, Any], name: str) -> dict[str, Any]:
    (line,) = [line for line in result["figures"] if (line["name"], line["kind"]) == (name, "all")]
    return line["estimate"]


def test_wer_sim_and_wins(tmp_path: Path, encoder: VoiceEncoder) -> None:
    """Both recordings say `SAID`, 16 words, and are heard so.

    right: nothing wrong. other: `young` for old, `by` for beside, `very` left out, of 17 words. long: 13
    words too many, of 3: not cut at 1.
    """
    texts = {
        "right": (0, SAID, 0),
        "other": (0, SAID.replace("old", "young").replace("beside", "by").replace("quiet", "very quiet"), 1),
        "long": (1, "Listened to music!", 1),
    }
    audio, against = tmp_path / "audio", tmp_path / "against"
    audio.mkdir()
    against.mkdir()
    meta = ""
    for name, (voice, text, speaker) in texts.items():
        meta += f"{name}|{SAID}|{VOICES[voice]}|{text}\n"
        shutil.copy(VOICES[speaker], audio / f"{name}.flac")
        soundfile.write(against / f"{name}.wav", wave(speaker)[: RATE if name == "right" else None], RATE)
    (tmp_path / "meta.lst").write_text(meta)
    result = run(
        tmp_path, "--suite", "seed_tts", "--data", str(tmp_path), "--audio", str(audio),
        "--against", str(against), "eval.pairs.quality.by=duration", "eval.pairs.quality.margin=0",
    )  # fmt: skip

    rates = [0.0, 3 / 17, 13 / 3]
    assert figure(result, "WER")["mean"] == pytest.approx(sum(rates) / 3)
    assert figure(result, "WER")["low"] == pytest.approx(0.0)
    assert figure(result, "WER")["high"] == pytest.approx(13 / 3)
    between = cosine(encoder, wave(1), wave(0))
    assert figure(result, "SIM")["mean"] == pytest.approx((1 + between + 1) / 3, abs=1e-4)
    assert figure(result, "SIM")["missing"] == 0
    assert between < 0.8
    rows = [json.loads(line) for line in (tmp_path / "out" / "items.jsonl").read_text().splitlines()]
    assert [row["figures"]["WER"] for row in rows] == pytest.approx(rates)
    assert rows[0]["details"]["asr"]["text"] == SAID
    # `right` against its first second, for 87 characters expected in 5.4 s; the others against themselves
    (preference,) = result["preferences"]
    assert preference["wins"]["mean"] == pytest.approx((1 + 0.5 + 0.5) / 3)
    assert (preference["consistent"], preference["first"]) == (1.0, 0.5)
    (sim,) = [one for one in result["differences"] if one["name"] == "SIM"]
    assert sim["comparison"]["after"] == pytest.approx(figure(result, "SIM")["mean"])
    page = (tmp_path / "out" / "eval.md").read_text()
    assert f"| WER ↓ | all | {sum(rates) / 3:.3f} | 0.000 to 4.333 | 3 | 0 |" in page
    assert "| quality | 0.667 |" in page


def test_drift_over_windows(tmp_path: Path, encoder: VoiceEncoder) -> None:
    """One clip that changes its voice in the middle, and one that doesn't."""
    changes = np.concatenate([wave(0), wave(1)])
    stays = np.concatenate([wave(0), wave(0)])
    audio = tmp_path / "audio"
    audio.mkdir()
    for name, samples in (("changes", changes), ("stays", stays)):
        soundfile.write(audio / f"{name}.wav", samples, RATE)
    twice = f"{SAID} {SAID}"
    rows = [
        {"id": "changes", "text": "1 of it", "text_norm": twice},  # read out so: the lower rate counts
        {"id": "stays", "text": f"{twice} Never said.", "text_norm": "x"},  # 2 of 34 words left out
    ]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "meta.lst").write_text(f"u|{SAID}|{VOICES[0]}|-\n")
    result = run(tmp_path, "--suite", "long_tts", "--data", str(tmp_path), "--audio", str(audio))

    means, stds, drifts = [], [], []
    for samples in (changes, stays):
        starts = range(0, len(samples) - 3 * RATE + 1, 3 * RATE // 2)
        found = [cosine(encoder, samples[start : start + 3 * RATE], wave(0)) for start in starts]
        assert len(found) in (4, 5)
        mean = sum(found) / len(found)
        means.append(mean)
        stds.append((sum((one - mean) ** 2 for one in found) / len(found)) ** 0.5)
        drifts.append(found[-1] - found[0])  # a third of 4 or 5 windows is one
    assert figure(result, "SIM-Mean")["mean"] == pytest.approx(sum(means) / 2, abs=1e-4)
    assert figure(result, "SIM-Std")["mean"] == pytest.approx(sum(stds) / 2, abs=1e-4)
    assert figure(result, "SIM drift")["mean"] == pytest.approx(sum(drifts) / 2, abs=1e-4)
    assert drifts[0] < drifts[1] - 0.1
    # weighed by the words of the text: 3 of `1 of it`, 34 of the other
    assert figure(result, "WER")["mean"] == pytest.approx((3 * 0 + 34 * 2 / 34) / 37)
    assert figure(result, "WER")["values"] == 2
