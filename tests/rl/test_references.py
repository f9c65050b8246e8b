"""Voices to clone, from files: any rate and format, encoded once, and heard by the policy."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from rl.codec.loading import load_codec
from rl.errors import PromptError
from rl.prompts_file import load_prompts
from rl.references import ReferenceEncoder
from rollouts.types import Prompt

S2_CODEC = Path(__file__).parent / "fixtures" / "s2_codec_tiny"


class _Counting:
    """S2's codec on random weights, which keeps what it was asked to encode."""

    def __init__(self) -> None:
        self.codec = load_codec(str(S2_CODEC))
        self.sample_rate, self.frame_rate = self.codec.sample_rate, self.codec.frame_rate
        self.codebook_sizes = self.codec.codebook_sizes
        self.asked: list[tuple[int, int]] = []

    def encode(self, wav: np.ndarray, sample_rate: int) -> np.ndarray:
        self.asked.append((len(wav), sample_rate))
        return self.codec.encode(wav, sample_rate)


def _tone(rate: int, seconds: float = 0.5) -> np.ndarray:
    return 0.3 * np.sin(2 * np.pi * 200 * np.arange(int(rate * seconds)) / rate)


def _prompts(folder: Path, *references: dict[str, str], **more: object) -> list[Prompt]:
    line = {"text": "<|speaker:1|>Hello.", "references": list(references), **more}
    (folder / "p.jsonl").write_text(json.dumps(line))
    return load_prompts(str(folder / "p.jsonl"))


def test_any_rate_and_format_once_by_content(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", _tone(16_000), 16_000)
    (tmp_path / "copy.wav").write_bytes((tmp_path / "a.wav").read_bytes())
    soundfile.write(tmp_path / "b.flac", np.stack([_tone(48_000)] * 2, 1), 48_000)
    soundfile.write(tmp_path / "c.ogg", _tone(22_050), 22_050)
    named = [{"audio": name, "text": f"It is {name}"} for name in ("a.wav", "b.flac", "copy.wav", "c.ogg")]
    codec = _Counting()
    encoder = ReferenceEncoder(codec)  # type: ignore[arg-type]
    prompts = _prompts(tmp_path, *named)
    assert prompts[0].references == ()
    (prompt,) = encoder.encoded(prompts)
    assert codec.asked == [(8000, 16_000), (24_000, 48_000), (11_025, 22_050)]
    assert [reference.text for reference in prompt.references] == [one["text"] for one in named]
    assert [reference.codes.shape for reference in prompt.references] == [(11, 10)] * 4
    np.testing.assert_array_equal(prompt.references[0].codes, prompt.references[2].codes)
    encoder.encoded(prompts * 3)
    assert len(codec.asked) == 3


def test_prompts_without_references_stay_as_they_are() -> None:
    prompt = Prompt("a", "Hi.", "hi")
    assert ReferenceEncoder(load_codec("tiny")).encoded([prompt]) == [prompt]


def test_references_are_the_voices_asked_for(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / name, _tone(16_000), 16_000)
    first, second = {"audio": "a.wav", "text": "One."}, {"audio": "b.wav", "text": "Two."}
    (prompt,) = _prompts(tmp_path, first, second)
    assert prompt.meta["voices"] == {"0": str(tmp_path / "a.wav"), "1": str(tmp_path / "b.wav")}
    assert prompt.meta["reference_audio"] == str(tmp_path / "b.wav")  # the text's speaker is 1
    (prompt,) = _prompts(tmp_path, {**first, "text": "<|speaker:1|>One."})
    assert prompt.meta["reference_audio"] == str(tmp_path / "a.wav")
    (prompt,) = _prompts(tmp_path, first)
    assert "reference_audio" not in prompt.meta
    (prompt,) = _prompts(tmp_path, first, second, reference_audio="a.wav")
    assert prompt.meta["reference_audio"] == str(tmp_path / "a.wav")
    assert "voices" not in prompt.meta


@pytest.mark.parametrize(
    ("references", "message"),
    [
        ("a.wav", "must be a list of objects with `audio` and `text`"),
        ([], "must be a list of objects"),
        ([{"audio": "a.wav"}], "must be a list of objects"),
        ([{"audio": "a.wav", "text": "x", "rate": 3}], "must be a list of objects"),
        ([{"audio": "no.wav", "text": "x"}], "no.wav is missing"),
        ([{"audio": "a.wav", "text": "<|voice|>"}], "a reference's text: `<|voice|>` is a control token"),
        ([{"audio": "a.wav", "text": " "}], "a reference's text: the text is empty"),
    ],
)
def test_faults_name_the_line(tmp_path: Path, references: object, message: str) -> None:
    (tmp_path / "a.wav").touch()
    (tmp_path / "p.jsonl").write_text(json.dumps({"text": "Hi.", "references": references}))
    with pytest.raises(PromptError) as caught:
        load_prompts(str(tmp_path / "p.jsonl"))
    assert message in str(caught.value)
    assert f"{tmp_path / 'p.jsonl'}, line 1" in str(caught.value)


def test_audio_that_can_not_be_heard_is_named(tmp_path: Path) -> None:
    encoder = ReferenceEncoder(load_codec(str(S2_CODEC)))
    (tmp_path / "text.wav").write_text("no audio")
    soundfile.write(tmp_path / "empty.wav", np.zeros(0), 16_000)
    for name, message in (("text.wav", "can't be read"), ("empty.wav", "holds no audio")):
        with pytest.raises(PromptError, match=message) as caught:
            encoder.encoded(_prompts(tmp_path, {"audio": name, "text": "x"}))
        assert str(tmp_path / name) in str(caught.value)
