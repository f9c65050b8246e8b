"""Reading the benchmarks' formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewards.tags import parse_target
from rl.errors import AuralignError, EvalError
from rl.evals import SUITES
from rl.evals.data import read_items
from rl.evals.instruct import tagged
from rl.evals.seed_tts import meta_lines
from rl.policy.loading import EMBEDDED

VOICE = EMBEDDED / "prompts" / "speaker_0.flac"


@pytest.mark.parametrize("suite", SUITES)
def test_each_suite_ships_a_sample(suite: str) -> None:
    prompts = read_items(suite, "tiny")
    assert len(prompts) >= 2
    assert all(Path(prompt.meta["reference_audio"]).is_file() for prompt in prompts)
    assert all("<|" not in prompt.spoken and "[" not in prompt.spoken for prompt in prompts)


def test_seed_tts_clones_the_recording(tmp_path: Path) -> None:
    file = tmp_path / "meta.lst"
    file.write_text(f"a-b|Wie? [so]|{VOICE}|Ja [hm] nein.|{VOICE}\n\n2|T|{VOICE}|Text\n", encoding="utf-8")
    first, second = read_items("seed_tts", str(tmp_path))
    assert (first.id, first.text, first.spoken) == ("a-b", "Ja [hm] nein.", "Ja [hm] nein.")
    assert first.meta["references"] == [{"audio": str(VOICE), "text": "Wie? [so]"}]
    assert first.meta["reference_audio"] == str(VOICE)
    assert second.id == "2"
    assert [p.id for p in read_items("seed_tts", str(file))] == ["a-b", "2"]


fields = st.text(
    st.characters(codec="utf-8", exclude_characters="|", exclude_categories=("C", "Z")), min_size=1
)


@given(rows=st.lists(st.tuples(fields, fields, fields, fields), max_size=5), fifth=st.booleans())
def test_meta_lines_give_back_their_fields(
    rows: list[tuple[str, ...]], fifth: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("meta") / "meta.lst"
    file.write_text("".join("|".join([*row, *(["x.wav"] * fifth)]) + "\n" for row in rows), encoding="utf-8")
    read = [(line.utt, line.prompt_text, line.prompt_wav, line.text) for line in meta_lines(file)]
    assert read == rows


def test_long_texts_take_the_voices_in_turn(tmp_path: Path) -> None:
    rows = [{"id": str(i), "text": f"{i} cups", "text_norm": "cups", "category": "news"} for i in range(3)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "reference_audio" not in read_items("long_tts", str(tmp_path))[0].meta
    other = EMBEDDED / "prompts" / "speaker_1.flac"
    (tmp_path / "meta.lst").write_text(f"u|T0|{VOICE}|-\nv|T1|{other}|-\n")
    prompts = read_items("long_tts", str(tmp_path))
    assert [p.meta["reference_audio"] for p in prompts] == [str(VOICE), str(other), str(VOICE)]
    assert prompts[0].meta["text_norm"] == "cups"
    assert prompts[0].meta["kind"] == "news"


def test_instructions_are_prompts_of_their_own(tmp_path: Path) -> None:
    row = {
        "id": "en_0",
        "text": "<|speaker:1|> Go on.",
        "APS": {"instruction": "pitch: low.\n\nspeed: fast"},
        "RP": "A [bored] king",
    }
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    first, second = read_items("instruct", str(tmp_path))
    assert (first.id, second.id) == ("en_0_APS", "en_0_RP")
    assert first.text == "<|speaker:1|>[pitch: low. speed: fast] Go on."
    assert second.text == "<|speaker:1|>[A (bored) king] Go on."
    assert first.spoken == second.spoken == "Go on."
    assert second.meta == {"instruction": "A [bored] king", "kind": "RP", "item": "en_0"}


@given(st.text(max_size=30), st.sampled_from(["Go on.", "<|speaker:3|>Go on."]))
def test_an_instruction_is_one_tag_over_all_words(instruction: str, text: str) -> None:
    (tag,) = parse_target(tagged(text, instruction.replace("<", ""))).instructions
    assert (tag.start, tag.stop) == (0, 2)


GOOD = json.dumps({"id": "a", "text": "[slow] Hi"})


@pytest.mark.parametrize(
    ("suite", "name", "content", "words"),
    [
        ("seed_tts", "meta.lst", "a|b|c\n", "meta.lst, line 1: 3 fields; seed-tts-eval's lines are utt|"),
        ("seed_tts", "meta.lst", f"a|b|{VOICE}|t\nb||{VOICE}|t", "line 2: the prompt text is empty"),
        ("seed_tts", "meta.lst", "a|b|absent.wav|t", "absent.wav is missing"),
        ("seed_tts", "meta.lst", "\n", "holds no item"),
        ("seed_tts", "meta.lst", f"a|b|{VOICE}|t\na|b|{VOICE}|t", "the id a stands twice"),
        ("seed_tts", "meta.lst", f"../a|b|{VOICE}|t", "the id '../a' can't be a file's name"),
        ("seed_tts", "meta.lst", f"a|b|{VOICE}|t<|im_end|>", "6 fields"),
        ("seed_tts", "meta.txt", "", "holds no meta.lst or *.lst"),
        ("seed_tts", "meta.lst", b"\xff", "can't be read as UTF-8 text"),
        ("long_tts", "a.jsonl", "{", "a.jsonl, line 1: not JSON"),
        ("long_tts", "a.jsonl", "[]", "line 1: must be a JSON object with id, text, text_norm"),
        ("long_tts", "a.jsonl", '{"id": "a", "text": "t"}', "`text_norm` is missing or not text"),
        ("instruct", "a.jsonl", '{"id": "a", "text": "t"}', "has none of the instructions APS, DSD, RP"),
        (
            "instruct",
            "a.jsonl",
            '{"id": "a", "text": "t", "RP": {}}',
            "RP must be an instruction, or an object",
        ),
        ("tags", "a.jsonl", f'{GOOD}\n{{"id": "b", "text": "Hi"}}', "b has no [tag] in its text"),
        ("custom", "a.jsonl", "{}", "`text` is missing or not text"),
    ],
)
def test_what_is_wrong_is_one_line(
    tmp_path: Path, suite: str, name: str, content: str | bytes, words: str
) -> None:
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AuralignError) as error:
        read_items(suite, str(tmp_path))
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_must_hold_one_file(tmp_path: Path) -> None:
    with pytest.raises(EvalError, match="--data absent: no such file or folder"):
        read_items("tags", "absent")
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text(GOOD)
    with pytest.raises(EvalError, match=r"holds 2 of \*\.jsonl \(a\.jsonl, b\.jsonl\); name one of them"):
        read_items("tags", str(tmp_path))
    assert len(read_items("tags", str(tmp_path / "b.jsonl"))) == 1
