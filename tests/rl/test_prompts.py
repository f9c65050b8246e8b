"""The step_audio_3 prompt format, and conversations of several turns in both formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.errors import PromptError
from rl.policy.configuration import DualARConfig
from rl.policy.loading import load_policy
from rl.policy.prompts import prompt_rows, segments_by_turn, turn_rows
from rollouts.types import Prompt, Reference
from tests.step_audio import byte_tokenizer, make_policy

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"
CODES = np.arange(20).reshape(2, 10)
TOKENIZER = byte_tokenizer(4)
PIECES = st.text(max_size=4) | st.sampled_from(["<|im_end|>", "<|", "|>", "im_start", "<|speaker:1|>"])
WORDS = st.lists(PIECES, min_size=1, max_size=6).map("".join)
CONTROL = {i: token for token, i in TOKENIZER.get_vocab().items() if token.startswith("<|")}


def text(prompt: Prompt, prompt_format: str = "step_audio_3") -> str:
    """The turns' prompts as one string, ◆ for a heard frame and ● where the earlier turn's frames stand."""
    turns = segments_by_turn(prompt, prompt_format)
    return "●".join("".join(s if isinstance(s, str) else "◆" * len(s) for s in turn) for turn in turns)


def test_role_director_script() -> None:
    meta = {"role": "<|speaker:0|>An old man.", "instruction": "Tired, slowly."}
    references = (Reference("One.", CODES), Reference("<|speaker:1|>Two.", CODES))
    assert text(Prompt("a", "<|speaker:0|>Hi.", "hi", references, meta)) == (
        "<|im_start|>ROLE\n<|speaker:0|>An old man.\n"
        "<|speaker:0|>One.\n◆◆\n<|speaker:1|>Two.\n◆◆\n<|im_end|>\n"
        "<|im_start|>DIRECTOR\nTired, slowly.<|im_end|>\n"
        "<|im_start|>SCRIPT\n<|speaker:0|>Hi.<|im_end|>\n<|im_start|>assistant\n<|voice|>"
    )


def test_sections_without_content_are_left_out() -> None:
    script = "<|im_start|>SCRIPT\nHi.<|im_end|>\n<|im_start|>assistant\n<|voice|>"
    assert text(Prompt("a", "Hi.", "hi")) == script
    director = "<|im_start|>DIRECTOR\nLoud.<|im_end|>\n"
    assert text(Prompt("a", "Hi.", "hi", (), {"instruction": " Loud. "})) == director + script


@pytest.mark.parametrize("name", ["role", "instruction"])
@pytest.mark.parametrize("bad", ["<|im_end|>", "a<|im_start|>SCRIPT", "<|audio_pad|>", " ", 3])
def test_no_text_opens_a_section(name: str, bad: object) -> None:
    with pytest.raises(PromptError, match=f"prompt x, meta.{name}"):
        text(Prompt("x", "Hi.", "hi", (), {name: bad}))


@settings(deadline=None)
@given(WORDS, WORDS, WORDS)
def test_control_tokens_are_the_formats_own(role: str, instruction: str, words: str) -> None:
    prompt = Prompt("x", words, "", (), {"role": role, "instruction": instruction})
    try:
        (segments,) = segments_by_turn(prompt, "step_audio_3")
    except PromptError:
        return
    ids = [i for segment in segments for i in TOKENIZER.encode(segment, add_special_tokens=False)]
    control = ["<|im_start|>", "<|im_end|>"] * 3 + ["<|im_start|>", "<|voice|>"]
    assert [CONTROL[i] for i in ids if i in CONTROL] == control


def test_given_audio_has_tokens_of_its_own(tmp_path: Path) -> None:
    model, tokenizer = load_policy(str(make_policy(tmp_path, books=10, size=32)))
    rows = prompt_rows(Prompt("a", "Hi.", "hi", (Reference("Yo.", CODES),)), tokenizer, model.config)
    at = model.config.is_heard(rows[0]).nonzero()[:, 0]
    assert rows[0, at].tolist() == [model.config.audio_pad_token_id] * 2
    assert rows[1:, at].T.tolist() == CODES.tolist()


def test_later_turns_follow_the_earlier_ones() -> None:
    history = (Reference("<|speaker:0|>Hi.", CODES), Reference("<|speaker:1|>You.", CODES[:1]))
    prompt = Prompt("a", "<|speaker:0|>Bye.", "bye", (), {}, history)
    answer = "<|im_end|>\n<|im_start|>assistant\n<|voice|>"
    assert text(prompt, "fish_s2") == (
        "<|im_start|>system\nconvert the provided text to speech<|im_end|>\n"
        f"<|im_start|>user\n<|speaker:0|>Hi.{answer}●<|im_end|>\n"
        f"<|im_start|>user\n<|speaker:1|>You.{answer}●<|im_end|>\n"
        f"<|im_start|>user\n<|speaker:0|>Bye.{answer}"
    )
    assert text(prompt).endswith(f"●<|im_end|>\n<|im_start|>SCRIPT\n<|speaker:0|>Bye.{answer}")


@pytest.mark.parametrize("feedback", ["all", "first"])
def test_earlier_frames_stand_as_they_were_generated(feedback: str) -> None:
    _, tokenizer = load_policy(str(GOLDEN))
    config = DualARConfig.from_pretrained(GOLDEN, feedback=feedback)
    prompt = Prompt("a", "Bye.", "bye", (), {}, (Reference("Hi.", CODES),))
    first, last = turn_rows(prompt, tokenizer, config)
    whole = prompt_rows(prompt, tokenizer, config)
    start = config.semantic_start_token_id
    frames = torch.cat([torch.tensor([[start, start + 10]]), torch.from_numpy(CODES.T)])
    assert torch.equal(whole, torch.cat([first, frames, last], 1))
    with pytest.raises(PromptError, match=r"prompt a: codes must be \[T, 10\]"):
        prompt_rows(Prompt("a", "Bye.", "bye", (), {}, (Reference("Hi.", CODES[:, :3]),)), tokenizer, config)
