"""The store gives back exactly what was written, opens in `datasets`, and names the file it can't read."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pyarrow.parquet as pq
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from rl.errors import RunFolderError
from rollouts.store import (
    StepRecord,
    discard_steps_after,
    iter_steps,
    quantise,
    read_step,
    step_path,
    write_step,
)
from rollouts.types import Prompt, Reference, Rollout, Turn

CODEBOOKS = 3


def make_record(step: int = 12, prompts: int = 2, samples: int = 3, **changes: object) -> StepRecord:
    rng = np.random.Generator(np.random.Philox(key=step))
    rollouts = []
    for p in range(prompts):
        reference = Reference("Hör zu.", rng.integers(0, 4096, (5, CODEBOOKS)))
        text = "<|speaker:0|>[whisper] Hi, 世界"
        prompt = Prompt(f"p{p}", text, "Hi, 世界", (reference,), {"lang": "en", "n": p})
        for s in range(samples):
            frames = int(rng.integers(1, 9))
            rollouts.append(
                Rollout(
                    prompt,
                    sample_index=s,
                    seed=2**40 + s,
                    codes=rng.integers(0, 4096, (frames, CODEBOOKS)),
                    logprobs=-rng.exponential(size=(frames, CODEBOOKS)).astype(np.float32),
                    end_logprob=None if s == 0 else float(-rng.exponential()),
                    finish_reason="length" if s == 0 else "eos",
                    policy_version=step - 1,
                    turns=() if p else (Turn("Hör zu.", frames - 1, -0.5), Turn("Ja.", 1, None)),
                )
            )
    count = len(rollouts)
    confidence = rng.random(count)
    confidence[1] = np.nan
    reasons: list[dict[str, str]] = [{} for _ in range(count)]
    reasons[1] = {"asr.confidence": "no words", "total": "asr.confidence is missing"}
    fields: dict[str, object] = {
        "step": step,
        "split": "train",
        "config_hash": "abc123",
        "sample_rate": 16000,
        "rollouts": rollouts,
        "audio": [quantise(rng.normal(size=int(rng.integers(50, 900)))) for _ in range(count)],
        "group_ids": np.repeat(np.arange(prompts), samples),
        "values": {"asr.confidence": confidence, "quality": rng.random(count)},
        "total": confidence * 0.5,
        "advantages": rng.normal(size=count),
        "gated": np.arange(count) == 2,
        "reasons": reasons,
        "details": [{"asr": {"transcript": f"hi {i}", "loops": False}} for i in range(count)],
        "submitted": rng.permutation(count),
    }
    return StepRecord(**{**fields, **changes})  # type: ignore[arg-type]


def assert_same(a: StepRecord, b: StepRecord) -> None:
    for name in ("step", "split", "config_hash", "sample_rate", "reasons", "details"):
        assert getattr(a, name) == getattr(b, name), name
    assert list(a.values) == list(b.values)
    arrays = [(a.group_ids, b.group_ids), (a.total, b.total), (a.advantages, b.advantages)]
    arrays += [(a.gated, b.gated), (a.submitted, b.submitted)]
    arrays += [(a.values[name], b.values[name]) for name in a.values]
    for x, y in zip(a.rollouts, b.rollouts, strict=True):
        arrays += [(x.codes, y.codes), (x.logprobs, y.logprobs)]
        arrays += [(r.codes, s.codes) for r, s in zip(x.prompt.references, y.prompt.references, strict=True)]
        for name in ("sample_index", "seed", "end_logprob", "finish_reason", "policy_version", "turns"):
            assert getattr(x, name) == getattr(y, name), name
        for name in ("id", "text", "spoken", "meta"):
            assert getattr(x.prompt, name) == getattr(y.prompt, name), name
        assert [r.text for r in x.prompt.references] == [r.text for r in y.prompt.references]
    for x_audio, y_audio in zip(a.audio, b.audio, strict=True):
        assert (x_audio is None) == (y_audio is None)
        if x_audio is not None and y_audio is not None:
            arrays.append((x_audio, y_audio))
    for left, right in arrays:
        assert left.dtype == right.dtype
        assert left.shape == right.shape
        assert left.tobytes() == right.tobytes()


def test_round_trip_is_exact(tmp_path: Path) -> None:
    record = make_record()
    path = step_path(tmp_path, 12)
    write_step(path, record)
    assert path.name == "step_000012.parquet"
    assert_same(record, read_step(path))
    assert list(path.parent.iterdir()) == [path]


def test_empty_and_unstorable_clips_stay_apart(tmp_path: Path) -> None:
    record = make_record(prompts=1, samples=3)
    first = record.rollouts[0]
    first.codes = np.zeros((0, CODEBOOKS), dtype=np.int64)
    first.logprobs = np.zeros((0, CODEBOOKS), dtype=np.float32)
    record.audio[:2] = [np.zeros(0, dtype=np.float32), None]
    path = tmp_path / "step.parquet"
    write_step(path, record)
    assert_same(record, read_step(path))


def test_missing_values_are_null_and_say_why(tmp_path: Path) -> None:
    path = tmp_path / "step.parquet"
    write_step(path, make_record())
    table = pq.read_table(path)
    assert table["reward.asr.confidence"].null_count == 1
    assert table["total"][1].as_py() is None
    missing = json.loads(table["missing"][1].as_py())
    assert missing == {"asr.confidence": "no words", "total": "asr.confidence is missing"}


def test_opens_in_datasets_with_playable_audio(tmp_path: Path) -> None:
    records = [make_record(1), make_record(2)]
    for record in records:
        write_step(step_path(tmp_path, record.step), record)
    files = [str(step_path(tmp_path, record.step)) for record in records]
    cache = str(tmp_path / "cache")
    data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    assert len(data) == 12
    assert data.features["audio"] == datasets.Audio(sampling_rate=16000)
    row = data.cast_column("audio", datasets.Audio(decode=False))[6]
    audio, rate = soundfile.read(io.BytesIO(row["audio"]["bytes"]), dtype="float32")
    assert rate == 16000
    assert np.array_equal(audio, records[1].audio[0])
    assert row["step"] == 2
    assert row["codes"] == records[1].rollouts[0].codes.tolist()


@given(hnp.arrays(np.float32, st.integers(0, 60), elements=st.floats(-2, 2, width=32)))
def test_quantise_rounds_once(audio: np.ndarray) -> None:
    once = quantise(audio)
    assert once.dtype == np.float32
    assert quantise(once).tobytes() == once.tobytes()
    assert np.all(np.abs(once - np.clip(audio, -1, 1)) <= 1 / 32768)


def test_quantise_known_values() -> None:
    got = quantise(np.array([0.0, -0.0, 1.0, -3.0, 0.5, 1.4 / 32768]))
    assert got.tolist() == [0.0, 0.0, 32767 / 32768, -1.0, 0.5, 1 / 32768]
    assert not np.signbit(got[1])
    assert np.isnan(quantise(np.array([0.1, np.nan]))[1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"audio": [np.full(9, 0.3, dtype=np.float32)] * 6}, "off the 16-bit grid"),
        ({"audio": [np.full(9, np.nan, dtype=np.float32)] * 6}, "off the 16-bit grid"),
        ({"total": np.zeros(5)}, "total has 5 rows for 6 rollouts"),
        ({"values": {"asr": np.zeros(7)}}, "asr has 7 rows"),
        ({"rollouts": []}, "without rollouts"),
        ({"split": "test"}, "split 'test'"),
        ({"details": [{"asr": {"score": float("nan")}}] * 6}, "JSON"),
    ],
)
def test_refuses_what_it_cannot_keep(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_step(tmp_path / "step.parquet", make_record(**changes))
    assert list(tmp_path.iterdir()) == []


def test_truncated_file_is_one_line_naming_it(tmp_path: Path) -> None:
    path = step_path(tmp_path, 3)
    write_step(path, make_record(3))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(RunFolderError, match=r"step_000003\.parquet: cut short or not Parquet") as caught:
        list(iter_steps(tmp_path))
    assert "\n" not in str(caught.value)


def test_foreign_newer_and_absent_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.parquet"
    with pytest.raises(RunFolderError, match=r"step\.parquet: no such rollout file"):
        read_step(path)
    write_step(path, make_record())
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({b"auralign": b'{"schema": 99}'}), path)
    with pytest.raises(RunFolderError, match="rollout schema 99, but this version reads 2"):
        read_step(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(RunFolderError, match="not a rollout file"):
        read_step(path)


def test_files_of_the_second_schema_had_no_turns(tmp_path: Path) -> None:
    path = tmp_path / "step.parquet"
    record = make_record()
    write_step(path, record)
    table = pq.read_table(path).drop_columns(["turns"])
    info = {**json.loads(table.schema.metadata[b"auralign"]), "schema": 2}
    pq.write_table(table.replace_schema_metadata({b"auralign": json.dumps(info).encode()}), path)
    for rollout in record.rollouts:
        rollout.turns = ()
    assert_same(record, read_step(path))


def test_a_part_of_a_conversation_is_not_stored(tmp_path: Path) -> None:
    record = make_record()
    prompt = record.rollouts[0].prompt
    record.rollouts[0].prompt = replace(prompt, history=prompt.references)
    with pytest.raises(ValueError, match="store the whole"):
        write_step(tmp_path / "step.parquet", record)


def test_iter_steps_is_ordered_and_keeps_splits_apart(tmp_path: Path) -> None:
    for step in (10, 2, 1):
        write_step(step_path(tmp_path, step), make_record(step))
    write_step(step_path(tmp_path, 0, "eval_before"), make_record(0, split="eval_before"))
    assert [record.step for record in iter_steps(tmp_path)] == [1, 2, 10]
    assert [record.step for record in iter_steps(tmp_path, "eval_before")] == [0]
    with pytest.raises(RunFolderError, match="no rollouts of split `eval_after`"):
        list(iter_steps(tmp_path, "eval_after"))


def test_half_written_file_is_named_and_resume_clears_it(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_step(step_path(tmp_path, step), make_record(step))
    partial = step_path(tmp_path, 4).with_suffix(".parquet.tmp")
    partial.write_bytes(b"PAR1")
    with pytest.raises(RunFolderError, match=r"step_000004\.parquet\.tmp: half-written"):
        next(iter_steps(tmp_path))
    discard_steps_after(tmp_path, 2)
    assert [record.step for record in iter_steps(tmp_path)] == [1, 2]
