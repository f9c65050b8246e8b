"""Turn by turn: where a text is cut, what later turns hear, and that the learner sees every log-prob."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.errors import PromptError
from rl.policy.likelihood import likelihood_of_turns
from rl.policy.loading import load_policy
from rl.policy.turns import sampled_logprobs, turns_of
from rollouts.engine import StreamingEngine, in_order
from rollouts.torch_engine import TorchEngine
from rollouts.turns import TurnEngine, TurnRule, cut_into_parts
from rollouts.types import Prompt, Reference, Rollout, SamplingParams
from tests.step_audio import make_policy

GOLDEN = Path(__file__).parent.parent / "rl" / "fixtures" / "s2_tiny"
CODES = np.random.Generator(np.random.Philox(key=3)).integers(0, 32, (5, 10))
THREE = "<|speaker:0|>Hi. <|speaker:1|>You there? <|speaker:0|>Yes."
PROMPTS = [
    Prompt("one", "Hello there.", "hello there"),
    Prompt("three", THREE, "hi you there yes", (Reference("Some words.", CODES),)),
    Prompt("two", "<|speaker:0|>So? <|speaker:1|>So.", "so so"),
]
RULE = TurnRule(turns=1, size=300)
SAMPLING = SamplingParams(temperature=0.8, max_frames=16)


@pytest.fixture(scope="module", params=["all", "first"])
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    path = str(GOLDEN)
    if request.param == "first":
        path = str(make_policy(tmp_path_factory.mktemp("policy"), books=10, size=32))
    return TorchEngine(*load_policy(path))


@pytest.fixture(scope="module")
def rollouts(engine: TorchEngine) -> list[Rollout]:
    return say(engine, PROMPTS)


def say(engine: TorchEngine, prompts: list[Prompt], n: int = 4, rule: TurnRule = RULE) -> list[Rollout]:
    return TurnEngine(engine, rule).generate(prompts, n, SAMPLING, 5)


@pytest.mark.parametrize(
    ("text", "rule", "parts"),
    [
        ("Untagged.\nText.", RULE, ["Untagged.\nText."]),
        ("<|speaker:3|> One. ", RULE, ["<|speaker:3|> One."]),
        (THREE, RULE, ["<|speaker:0|>Hi.", "<|speaker:1|>You there?", "<|speaker:0|>Yes."]),
        (THREE, TurnRule(2, 300), ["<|speaker:0|>Hi.\n<|speaker:1|>You there?", "<|speaker:0|>Yes."]),
        (THREE, TurnRule(5, 39), ["<|speaker:0|>Hi.\n<|speaker:1|>You there?", "<|speaker:0|>Yes."]),
        (THREE, TurnRule(5, 1), ["<|speaker:0|>Hi.", "<|speaker:1|>You there?", "<|speaker:0|>Yes."]),
    ],
)
def test_where_a_text_is_cut(text: str, rule: TurnRule, parts: list[str]) -> None:
    """The turns have 16, 23 and 17 bytes."""
    assert cut_into_parts(Prompt("p", text, ""), rule) == parts


def test_text_without_a_speaker_is_not_dropped() -> None:
    with pytest.raises(PromptError, match=r"prompt p: `Well\.` stands before the first speaker tag"):
        cut_into_parts(Prompt("p", "Well. <|speaker:0|>Hi.", ""), RULE)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.text("abé ", min_size=1, max_size=9)), min_size=1),
    st.integers(1, 4),
    st.integers(1, 60),
)
def test_nothing_is_lost_and_limits_hold(turns: list[tuple[int, str]], most: int, size: int) -> None:
    spoken = [f"<|speaker:{speaker}|>{text}".strip() for speaker, text in turns]
    parts = cut_into_parts(Prompt("p", " ".join(spoken), ""), TurnRule(most, size))
    lines = [part.split("\n") for part in parts]
    assert [line for part in lines for line in part] == spoken
    for part in lines:
        assert len(part) <= most
        assert len(part) == 1 or sum(len(line.encode()) for line in part) <= size


def test_every_turn_is_in_the_rollout(rollouts: list[Rollout]) -> None:
    assert [(r.prompt.id, r.sample_index) for r in rollouts] == [(p.id, i) for p in PROMPTS for i in range(4)]
    assert {len(r.turns) for r in rollouts} == {1, 2, 3}
    for r in rollouts:
        assert [t.text for t in r.turns] == cut_into_parts(r.prompt, RULE)
        assert sum(t.frames for t in r.turns) == len(r.codes) == len(r.logprobs)
        assert r.end_logprob == r.turns[-1].end_logprob
        cut = any(t.end_logprob is None for t in r.turns)
        assert r.finish_reason == ("length" if cut else "eos")
    assert {r.finish_reason for r in rollouts} == {"eos", "length"}


def test_the_learner_sees_the_log_prob_of_every_turn(engine: TorchEngine, rollouts: list[Rollout]) -> None:
    rollouts = rollouts + say(engine, PROMPTS[1:2], rule=TurnRule(2, 300))
    turns = [turns_of(r, engine.tokenizer, engine.model.config) for r in rollouts]
    with torch.no_grad():
        result = likelihood_of_turns(engine.model, turns, SAMPLING.temperature)
    for b, rollout in enumerate(rollouts):
        slow, fast = sampled_logprobs(rollout)
        np.testing.assert_allclose(result.slow[b][result.slow_mask[b]], slow, atol=1e-4)
        np.testing.assert_allclose(result.fast[b][result.frame_mask[b]], fast, atol=1e-4)


def test_later_turns_hear_the_earlier_ones(engine: TorchEngine) -> None:
    """The second turn is what the engine says after this first turn, and no other."""
    first, second = PROMPTS[2].text.split(" ")
    for rollout in say(engine, PROMPTS[2:], n=2):
        heard = rollout.codes[: rollout.turns[0].frames]
        name = f"two/turn 1/{rollout.sample_index}"
        said = []
        for codes in (heard, CODES):
            prompt = Prompt(name, second, "", (), {}, (Reference(first, codes),))
            said.append(engine.generate([prompt], 1, SAMPLING, 5)[0])
        np.testing.assert_array_equal(rollout.codes[len(heard) :], said[0].codes)
        begins = [sampled_logprobs(other)[0][0].item() for other in said]
        assert abs(begins[0] - begins[1]) > 1e-3


def test_a_sample_does_not_change_with_its_batch(engine: TorchEngine, rollouts: list[Rollout]) -> None:
    apart = [r for p in reversed(PROMPTS) for r in say(engine, [p])]
    for mine, other in zip(rollouts, in_order(apart, PROMPTS), strict=True):
        np.testing.assert_array_equal(mine.codes, other.codes)


def test_a_text_of_one_part_is_sampled_as_ever(engine: TorchEngine, rollouts: list[Rollout]) -> None:
    plain = engine.generate(PROMPTS[:1], 4, SAMPLING, seed=5)
    for mine, other in zip(rollouts[:4], plain, strict=True):
        np.testing.assert_array_equal(mine.codes, other.codes)


def test_it_is_an_engine_like_any_other(engine: TorchEngine) -> None:
    outer = TurnEngine(engine, RULE)
    assert isinstance(outer, StreamingEngine)
    outer.version = 7
    rollouts = outer.generate(PROMPTS[2:], 2, SAMPLING, 5)
    assert {r.policy_version for r in rollouts} == {engine.version} == {7}
    tokens = 0
    for rollout in rollouts:
        first, second = turns_of(rollout, engine.tokenizer, engine.model.config)
        tokens += 2 * first.read.shape[1] + len(first.codes) + second.read.shape[1]
    assert outer.stats.prompt_tokens == tokens
