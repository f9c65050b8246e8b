"""The vLLM engine's parts that need no vLLM: the fast AR and the frame store."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rl.policy import DualARConfig, DualARForCausalLM
from rollouts.noise import uniforms
from rollouts.torch_engine import TorchEngine
from rollouts.vllm.fast import FastDecoder
from rollouts.vllm.frames import SCRATCH, FrameStore, Sample


def _config(text_dim: int, kv_heads: int, qk_norm: bool) -> DualARConfig:
    shape = {"n_layer": 2, "n_head": 4, "n_local_heads": kv_heads, "head_dim": 16, "intermediate_size": 96}
    return DualARConfig(
        text_config={**shape, "vocab_size": 40, "dim": text_dim, "initializer_range": 0.25},
        audio_decoder_config={
            **shape, "vocab_size": 24, "dim": 48, "text_dim": text_dim, "num_codebooks": 6,
            "attention_qk_norm": qk_norm,
        },
        semantic_start_token_id=10, semantic_end_token_id=33, eos_token_id=9, residual_codebook_size=20,
    )  # fmt: skip


@pytest.mark.parametrize(("text_dim", "kv_heads", "qk_norm"), [(48, 4, False), (64, 2, True)])
def test_fast_decoder_is_the_policys_fast_ar(text_dim: int, kv_heads: int, qk_norm: bool) -> None:
    """The codes and log-probs of the reference engine, from the same weights, noise and hidden states."""
    torch.manual_seed(0)
    model = DualARForCausalLM(_config(text_dim, kv_heads, qk_norm))
    decoder = FastDecoder(model.config)
    weights = dict(model.audio_decoder.named_parameters())
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if ".w13." in name:
                parts = [weights[name.replace("w13", part)] for part in ("w1", "w3")]
                parameter.copy_(torch.cat(parts))
            else:
                parameter.copy_(weights[name])
        hidden, semantic = torch.randn(7, text_dim), torch.randint(0, 24, (7,))
        noise = torch.rand(7, 6, dtype=torch.float64)
        expected = TorchEngine(model, None)._fast(hidden, semantic, noise, 0.8)
        codes, logprobs = decoder(hidden, semantic, noise, 0.8)
    assert torch.equal(codes, expected[0])
    assert codes.max() < 20
    torch.testing.assert_close(logprobs, expected[1], atol=1e-5, rtol=0)


def test_frames_are_found_by_request_and_position() -> None:
    store = FrameStore(codebooks=3, device="cpu")
    store.begin(requests=2, length=8, frames=4)
    audio = torch.tensor([1, 2])
    sample = Sample(seed=5, prompt_id="p", index=1, codes=[[1, 2, 3], [4, 5, 6]])
    first = store.add("a", 4, audio, sample)
    second = store.add("b", 3, torch.tensor([], dtype=torch.long), Sample(5, "p", 0, []))
    assert SCRATCH not in (first, second)
    slots, positions = torch.tensor([first, second]), torch.tensor([4, 4])
    store.write(slots, positions, torch.tensor([[7, 8, 9], [1, 1, 1]]))
    store.write(torch.tensor([SCRATCH]), torch.tensor([4]), torch.tensor([[2, 2, 2]]))
    assert store.add("a", 4, audio, sample) == first  # resumed: its frames are still there
    rows = torch.full((5,), first), torch.arange(5)
    assert store.read(*rows).tolist() == [[0] * 3, [1, 2, 3], [4, 5, 6], [0] * 3, [7, 8, 9]]
    np.testing.assert_array_equal(store.noise_at(slots, positions)[0], uniforms(5, "p", 1, 4, 3)[0])
    np.testing.assert_array_equal(store.noise_at(slots, positions)[1], uniforms(5, "p", 0, 4, 3)[1])
    store.begin(requests=1, length=8, frames=4)
    assert store.slots == {}
    assert not store.codes.any()
