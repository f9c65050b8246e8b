"""Every kind of source is read; what can't be is one line that names the file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given, settings
from hypothesis import strategies as st

from rewards.audit.clips import ClipSet
from rewards.audit.data_in import read_clips
from rl.errors import AuditError, AuralignError
from rollouts.store import StepRecord, step_path, write_step
from rollouts.types import Prompt, Rollout

TONE = (0.1 * np.sin(np.arange(8000) / 5)).astype(np.float32)


@pytest.fixture
def wavs(tmp_path: Path) -> Path:
    soundfile.write(tmp_path / "mono.wav", TONE, 8000)
    soundfile.write(tmp_path / "stereo.flac", np.stack([TONE, 0 * TONE], 1), 44100)
    return tmp_path


def record(step: int = 1, groups: int = 2, samples: int = 2) -> StepRecord:
    rollouts = [
        Rollout(Prompt(f"p{g}", f"Say {g}.", f"Say {g}."), s, 0, np.zeros((3 - s, 4), int),
                np.zeros((3 - s, 4), np.float32), None, "length", step)
        for g in range(groups) for s in range(samples)
    ]  # fmt: skip
    count = len(rollouts)
    audio: list[np.ndarray | None] = [np.full(100 + i, 0.5, np.float32) for i in range(count)]
    audio[1] = None
    return StepRecord(
        step, "train", "abc", 16000, rollouts, audio, np.repeat(np.arange(groups), samples),
        {"a": np.arange(count) / 4}, np.arange(count) / 4, np.zeros(count), np.zeros(count, bool),
        [{} for _ in range(count)], [{} for _ in range(count)], np.arange(count)[::-1].copy(),
    )  # fmt: skip


def test_a_manifest_of_files(wavs: Path) -> None:
    rows = [
        {
            "audio": "mono.wav",
            "text": "[slow] Hi.",
            "reference": "stereo.flac",
            "group": "g",
            "step": 3,
            "lang": "en",
        },
        {"audio": "stereo.flac", "text": "Bye.", "spoken": "bye", "instruction": "fast", "id": "b"},
    ]
    (wavs / "m.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    data = read_clips(wavs / "m.jsonl")
    first, second = data.clips
    assert (first.spoken, first.sample_rate, first.reference_rate, first.meta) == (
        "Hi.",
        8000,
        44100,
        {"lang": "en"},
    )
    np.testing.assert_allclose(second.audio, TONE / 2, atol=1e-4)  # channels are averaged
    assert (second.spoken, second.meta) == ("bye", {"instruction": "fast"})
    assert (data.ids, data.steps.tolist(), data.groups.tolist()) == (["0", "b"], [3, 0], [0, 1])
    (wavs / "m.csv").write_text('audio,text,step\nmono.wav,"Hi, you.",2\nstereo.flac,"Hi, you.",2\n')
    assert read_clips(wavs / "m.csv").groups.tolist() == [0, 0]
    assert len(read_clips(wavs / "m.jsonl", clips=1)) == 1


def test_a_dataset(wavs: Path) -> None:
    files = [str(wavs / "mono.wav"), str(wavs / "stereo.flac")]
    made = datasets.Dataset.from_dict({"audio": files, "text": ["a", "b"]})
    made = made.cast_column("audio", datasets.Audio(decode=False))
    made.save_to_disk(str(wavs / "saved"))
    made.to_parquet(str(wavs / "table.parquet"))
    for source in ("saved", "table.parquet"):
        data = read_clips(wavs / source)
        assert [len(clip.audio) for clip in data.clips] == [8000, 8000]
        assert [clip.text for clip in data.clips] == ["a", "b"]


def test_a_run(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_step(step_path(tmp_path, step), record(step))
    data = read_clips(tmp_path)
    assert data.groups.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [batch.tolist() for batch in data.batches][:2] == [[3, 2, 1, 0], [7, 6, 5, 4]]
    assert data.ids[5] == "train-2-p0-1"
    assert np.isnan(data.clips[1].audio).all()
    assert data.stored is not None
    np.testing.assert_array_equal(data.stored.total, np.tile(np.arange(4) / 4, 3))
    assert np.unique(read_clips(tmp_path, clips=8).steps).tolist() == [1, 3]
    assert len(read_clips(tmp_path / "rollouts" / "step_000002.parquet")) == 4


def mp3s(folder: Path) -> Path:
    (folder / "a.mp3").write_bytes(b"ID3")
    (folder / "b.mp3").write_bytes(b"ID3")
    return folder


def cut_short(folder: Path) -> Path:
    write_step(step_path(folder, 1), record())
    path = step_path(folder, 1)
    path.write_bytes(path.read_bytes()[:-100])
    return folder


def of_the_future(folder: Path) -> Path:
    write_step(step_path(folder, 1), record())
    table = pq.read_table(step_path(folder, 1))
    info = json.loads(table.schema.metadata[b"auralign"])
    metadata = {**table.schema.metadata, b"auralign": json.dumps({**info, "schema": 99}).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), step_path(folder, 1))
    return folder


def listing(*rows: dict[str, object]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        soundfile.write(folder / "ok.wav", TONE, 8000)
        soundfile.write(folder / "empty.wav", TONE[:0], 8000)
        (folder / "noise.wav").write_bytes(b"not audio at all")
        (folder / "m.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
        return folder / "m.jsonl"

    return write


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (mp3s, "but 2 .mp3 files; name a run, or list the files in a manifest"),
        (cut_short, "step_000001.parquet: cut short or not Parquet"),
        (of_the_future, "rollout schema 99, but this version reads 2"),
        (lambda folder: folder, "no rollouts in it"),
        (lambda folder: folder / "nothing", "no such file or folder"),
        (listing(), "holds no clips"),
        (listing({"text": "a"}), "line 1: has no audio; columns that are read: audio, text"),
        (listing({"audio": "ok.wav", "text": 3}), "line 1: text must be text"),
        (listing({"audio": "gone.wav", "text": "a"}), "gone.wav is missing"),
        (listing({"audio": "empty.wav", "text": "a"}), "empty.wav holds no audio"),
        (listing({"audio": "noise.wav", "text": "a"}), "noise.wav isn't WAV or FLAC"),
        (listing({"audio": 3, "text": "a"}), "audio must be a file's name"),
        (listing({"audio": "ok.wav", "text": "a", "step": "x"}), "step must be a whole number"),
        (listing(*[{"audio": "ok.wav", "text": "a", "id": 1}] * 2), "the id 1 stands twice"),
    ],
)
def test_what_cannot_be_read_is_one_line(make: Callable[[Path], Path], says: str, tmp_path: Path) -> None:
    with pytest.raises(AuralignError) as error:
        read_clips(make(tmp_path))
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([".jsonl", ".csv"]),
    st.one_of(st.binary(max_size=80), st.text(max_size=80).map(lambda text: f"audio,text\n{text}".encode())),
)
def test_any_manifest_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, ending: str, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("m") / f"m{ending}"
    path.write_bytes(content)
    try:
        assert isinstance(read_clips(path), ClipSet)
    except AuditError as error:
        assert "\n" not in str(error)
