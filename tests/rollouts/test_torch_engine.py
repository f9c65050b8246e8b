"""The torch engine: what it samples doesn't depend on the batch, and the learner sees the same log-probs."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rl.errors import CheckpointError
from rl.policy.loading import load_policy
from rl.policy.prompts import prompt_rows
from rollouts.noise import uniforms
from rollouts.torch_engine import TorchEngine, draw
from rollouts.types import Prompt, Reference, SamplingParams
from tests.one_turn import likelihood
from tests.rollouts.vllm_cases import assert_same_rollouts

GOLDEN = Path(__file__).parent.parent / "rl" / "fixtures" / "s2_tiny"
CODES = np.random.Generator(np.random.Philox(key=3)).integers(0, 32, (7, 10))
PROMPTS = [
    Prompt("short", "Hi.", "hi"),
    Prompt("long", "<|speaker:0|>[slow] A much longer line, with more to say.", "a much longer line"),
    Prompt("cloned", "Hello there.", "hello there", (Reference("Some words.", CODES),)),
]


@pytest.fixture(scope="module")
def engine() -> TorchEngine:
    model, tokenizer = load_policy(str(GOLDEN))
    return TorchEngine(model, tokenizer)


def test_sampler_and_learner_agree_on_every_token(engine: TorchEngine) -> None:
    rollouts = engine.generate(PROMPTS, 8, SamplingParams(temperature=0.8, max_frames=12), seed=5)
    assert {r.finish_reason for r in rollouts} == {"eos", "length"}
    assert len({len(r.codes) for r in rollouts}) > 2
    model = engine.model
    kept = [r for r in rollouts if len(r.codes)]
    prompts = [prompt_rows(r.prompt, engine.tokenizer, model.config) for r in kept]
    codes = [torch.from_numpy(r.codes) for r in kept]
    with torch.no_grad():
        result = likelihood(model, prompts, codes, [r.finish_reason == "eos" for r in kept], 0.8)
    for b, r in enumerate(kept):
        length = len(r.codes)
        np.testing.assert_allclose(result.slow[b, :length], r.logprobs[:, 0], atol=1e-4)
        np.testing.assert_allclose(result.fast[b, :length], r.logprobs[:, 1:], atol=1e-4)
        if r.end_logprob is not None:
            assert abs(result.slow[b, length].item() - r.end_logprob) < 1e-4
        assert result.slow_mask[b].sum() == length + (r.end_logprob is not None)


def test_a_sample_does_not_change_with_its_batch(engine: TorchEngine) -> None:
    sampling = SamplingParams(max_frames=10)
    together = engine.generate(PROMPTS, 4, sampling, seed=1)
    alone, few = (TorchEngine(engine.model, engine.tokenizer, size) for size in (1, 5))
    assert_same_rollouts(together, few.generate(PROMPTS, 4, sampling, seed=1))
    apart = [r for p in reversed(PROMPTS) for r in alone.generate([p], 4, sampling, seed=1)]
    found = {(r.prompt.id, r.sample_index): r for r in apart}
    for r in together:
        other = found[r.prompt.id, r.sample_index]
        np.testing.assert_array_equal(r.codes, other.codes)
        np.testing.assert_allclose(r.logprobs, other.logprobs, atol=1e-5)


def test_who_waits_takes_the_place_of_who_ended(engine: TorchEngine) -> None:
    """All rows are in use until no sample waits: their number only falls. A prompt is read once."""
    few, books = TorchEngine(engine.model, engine.tokenizer, batch_size=5), engine.model.config.num_codebooks
    rows = list[int]()
    hook = engine.model.audio_decoder.output.register_forward_pre_hook(
        lambda _, inputs: rows.append(len(inputs[0]))
    )
    lengths = [len(r.codes) for r in few.stream(PROMPTS, 8, SamplingParams(0.8, 12), seed=5)]
    hook.remove()
    frames = rows[:: books - 1]
    assert len(set(lengths)) > 2
    assert sum(frames) == sum(lengths)
    assert frames == sorted(frames, reverse=True)
    assert frames[0] == 5
    assert few.stats.prompt_tokens == 8 * (few.stats.prompt_tokens - few.stats.cached_tokens)


def test_seeds_and_samples_differ(engine: TorchEngine) -> None:
    sampling = SamplingParams(max_frames=10)
    a = engine.generate(PROMPTS[:1], 4, sampling, seed=1)
    b = engine.generate(PROMPTS[:1], 4, sampling, seed=2)
    assert len({r.codes.tobytes() for r in a + b}) == 8


def test_draw_follows_the_distribution() -> None:
    probabilities = torch.tensor([0.1, 0.0, 0.6, 0.3])
    uniform = torch.arange(1000, dtype=torch.float64) / 1000
    picked, logprob = draw(probabilities.log().expand(1000, 4), uniform)
    assert torch.bincount(picked, minlength=4).tolist() == pytest.approx([100, 0, 600, 300], abs=1)
    assert logprob[0].exp().item() == pytest.approx(0.1)


def test_noise_is_counter_based() -> None:
    np.testing.assert_array_equal(uniforms(1, "a", 2, 5, 3), uniforms(1, "a", 2, 9, 3)[:5])
    assert not np.array_equal(uniforms(1, "a", 2, 5, 3), uniforms(1, "a", 3, 5, 3))


def test_weights_are_loaded_whole_or_not_at_all() -> None:
    model, tokenizer = load_policy(str(GOLDEN))
    engine = TorchEngine(model, tokenizer)
    name = "text_model.model.norm.weight"
    before = dict(model.named_parameters())[name].clone()
    with pytest.raises(CheckpointError, match="no parameter `nonsense`"):
        engine.load_weights({name: before * 2, "nonsense": torch.zeros(1)})
    assert torch.equal(dict(model.named_parameters())[name], before)
    assert engine.version == 0
    engine.load_weights({name: before * 2})
    assert torch.equal(dict(model.named_parameters())[name], before * 2)
    rollout = engine.generate(PROMPTS[:1], 1, SamplingParams(max_frames=2), seed=0)[0]
    assert rollout.policy_version == 1
