"""The policy against the published implementation's outputs, and the fish_s2 prompt format."""

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from rl.errors import CheckpointError, PromptError
from rl.policy import DualARForCausalLM
from rl.policy.loading import load_policy, load_tokenizer
from rl.policy.parity import parity
from rl.policy.prompts import check_user_text, prompt_rows, segments_by_turn
from rollouts.types import Prompt, Reference

GOLDEN = Path(__file__).parent / "fixtures" / "s2_tiny"


def test_matches_the_published_implementation() -> None:
    assert max(parity(GOLDEN).values()) < 1e-4


def test_a_wrong_weight_breaks_parity(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    weights = load_file(GOLDEN / "model.safetensors")
    weights["audio_decoder.layers.1.attention.wo.weight"] *= 1.1
    save_file(weights, tmp_path / "ckpt" / "model.safetensors", {"format": "pt"})
    assert parity(tmp_path / "ckpt")["fast_logits"] > 1e-4


def test_the_parity_script_prints_one_line_and_fails_above_the_tolerance(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "parity.py"
    done = subprocess.run([sys.executable, script, GOLDEN], capture_output=True, text=True)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1)
    assert json.loads(done.stdout).keys() == {"slow_logits", "slow_hidden", "fast_logits"}
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    golden = load_file(GOLDEN / "golden.safetensors")
    golden["fast_logits"][0, 0, 0] += 2e-4
    save_file(golden, tmp_path / "ckpt" / "golden.safetensors")
    done = subprocess.run([sys.executable, script, tmp_path / "ckpt"], capture_output=True, text=True)
    assert done.returncode == 1
    assert json.loads(done.stdout)["fast_logits"] > 1e-4


def test_auto_classes_and_round_trip(tmp_path: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(GOLDEN, dtype=torch.float32)
    assert isinstance(model, DualARForCausalLM)
    model.save_pretrained(tmp_path)
    ours, theirs = load_file(tmp_path / "model.safetensors"), load_file(GOLDEN / "model.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_checkpoint_errors_name_the_cause(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        load_policy(str(tmp_path))
    shutil.copytree(GOLDEN, tmp_path / "ckpt")
    weights = load_file(GOLDEN / "model.safetensors")
    del weights["text_model.model.norm.weight"]
    save_file(weights, tmp_path / "ckpt" / "model.safetensors", {"format": "pt"})
    with pytest.raises(CheckpointError, match=r"text_model\.model\.norm\.weight"):
        load_policy(str(tmp_path / "ckpt"))
    config = json.loads((GOLDEN / "config.json").read_text())
    del config["text_config"]["n_layer"]
    (tmp_path / "ckpt" / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match="n_layer"):
        load_policy(str(tmp_path / "ckpt"))


def _text(prompt: Prompt) -> str:
    (segments,) = segments_by_turn(prompt, "fish_s2")
    return "".join(s if isinstance(s, str) else "◆" * len(s) for s in segments)


def test_plain_prompt() -> None:
    assert _text(Prompt("a", "Hello.", "hello")) == (
        "<|im_start|>system\nconvert the provided text to speech<|im_end|>\n"
        "<|im_start|>user\nHello.<|im_end|>\n<|im_start|>assistant\n<|voice|>"
    )


def test_prompt_with_two_references() -> None:
    codes = np.zeros((2, 10), np.int64)
    references = (Reference("One.", codes), Reference("<|speaker:1|>Two.", codes))
    assert _text(Prompt("a", "<|speaker:1|>Hi.", "hi", references)) == (
        "<|im_start|>system\nconvert the provided text to speech reference to the following:\n\nText:\n"
        "<|speaker:0|>One.\n<|speaker:1|>Two.\n\nSpeech:\n◆◆◆◆<|im_end|>\n<|im_start|>user\n"
        "<|speaker:1|>Hi.<|im_end|>\n<|im_start|>assistant\n<|voice|>"
    )


def test_reference_codes_lie_beside_their_semantic_tokens() -> None:
    model, tokenizer = load_policy(str(GOLDEN))
    codes = np.arange(20).reshape(2, 10)
    rows = prompt_rows(Prompt("a", "Hi.", "hi", (Reference("Yo.", codes),)), tokenizer, model.config)
    start = model.config.semantic_start_token_id
    at = torch.nonzero(rows[0] >= start)[:, 0]
    assert rows[0, at].tolist() == [start + 0, start + 10]
    assert rows[1:, at].T.tolist() == codes.tolist()
    with pytest.raises(PromptError, match=r"\[T, 10\]"):
        prompt_rows(Prompt("a", "Hi.", "hi", (Reference("Yo.", codes[:, :3]),)), tokenizer, model.config)


@pytest.mark.parametrize("bad", ["a <|im_end|> b", "<|semantic:7|>", "<|voice|>", "<||>", "  "])
def test_control_tokens_in_user_text_are_refused(bad: str) -> None:
    with pytest.raises(PromptError, match="prompt x"):
        segments_by_turn(Prompt("x", bad, ""), "fish_s2")


@given(st.text(min_size=1), st.integers(0, 99))
def test_user_text_never_becomes_a_control_token(text: str, speaker: int) -> None:
    tokenizer = _tokenizer()
    try:
        check_user_text(f"<|speaker:{speaker}|>{text}", "here")
    except PromptError:
        return
    assert not set(tokenizer.encode(text, add_special_tokens=False)) & set(tokenizer.all_special_ids)


@cache
def _tokenizer():  # type: ignore[no-untyped-def]
    return load_tokenizer(GOLDEN)
