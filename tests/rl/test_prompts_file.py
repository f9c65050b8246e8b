"""Prompt files: the embedded sets, defaults, and one clear line for each fault."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tags import spoken_words
from rl.errors import PromptError
from rl.prompts_file import load_prompts


def test_embedded_sets_are_disjoint_in_sentences() -> None:
    train, held_out = load_prompts("tiny:train"), load_prompts("tiny:heldout")
    assert len(train) == 2000
    assert len(held_out) == 256
    assert not {p.spoken for p in train} & {p.spoken for p in held_out}
    assert all(Path(p.meta["reference_audio"]).is_file() for p in held_out)
    assert {p.meta["speaker"] for p in held_out} == {0, 1}
    for prompt in held_out:
        assert prompt.meta["reference_audio"] == prompt.meta["voices"][str(prompt.meta["speaker"])]


def test_embedded_prompts_with_a_style() -> None:
    styled = load_prompts("tiny:heldout_styled")
    assert len(styled) == 59
    assert {prompt.id for prompt in styled} < {prompt.id for prompt in load_prompts("tiny:heldout")}
    assert all("[" in prompt.text for prompt in styled)


def test_a_voice_for_each_speaker(tmp_path: Path) -> None:
    for name in ("a.wav", "b.wav"):
        (tmp_path / name).touch()
    voices = '"reference_audio": {"0": "a.wav", "1": "b.wav"}'
    (tmp_path / "p.jsonl").write_text(f'{{"text": "<|speaker:1|>Hi.<|speaker:0|>Yes.", {voices}}}')
    (prompt,) = load_prompts(str(tmp_path / "p.jsonl"))
    assert prompt.meta["voices"] == {"0": str(tmp_path / "a.wav"), "1": str(tmp_path / "b.wav")}
    assert prompt.meta["reference_audio"] == str(tmp_path / "b.wav")


def test_defaults(tmp_path: Path) -> None:
    lines = '{"text": "<|speaker:1|>[slow] Hello  there."}\n\n{"text": "Two", "id": "b"}\n'
    (tmp_path / "p.jsonl").write_text(lines)
    first, second = load_prompts(str(tmp_path / "p.jsonl"))
    assert (first.id, first.spoken, second.id) == ("1", "Hello there.", "b")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no prompt"),
        ("{", "line 1: not JSON"),
        ("[1]", "line 1: must be a JSON object"),
        ('{"txt": "a"}', "unknown field `txt`"),
        ('{"id": "a"}', "`text` is missing"),
        ('{"text": "a<|im_end|>"}', "control token"),
        ('{"text": "a", "reference_audio": "no.wav"}', "no.wav is missing"),
        ('{"text": "<|speaker:2|>a", "reference_audio": {"0": "p.jsonl"}}', "has no speaker 2, whom"),
        ('{"text": "a", "reference_audio": ["p.jsonl"]}', "must be a file, or speaker numbers"),
        ('{"text": "a", "id": "x"}\n{"text": "b", "id": "x"}', "`x` stands twice"),
    ],
)
def test_faults_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    with pytest.raises(PromptError) as caught:
        load_prompts(str(file))
    assert message in str(caught.value)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(alphabet="abc <>|[]:", max_size=30))
def test_spoken_words_never_keep_a_whole_tag(text: str) -> None:
    spoken = spoken_words(json.loads(json.dumps(text)))
    assert "<|a|>" not in spoken
    assert "[a]" not in spoken
    assert spoken == " ".join(spoken.split())
