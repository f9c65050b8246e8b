"""A small random policy, and runs of it that take seconds."""

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rl.config import load_config
from rl.policy import DualARConfig, DualARForCausalLM
from rl.schema import RunConfig
from tests.step_audio import byte_tokenizer

BOOKS, SIZE = 4, 1024
Configure = Callable[..., RunConfig]


@pytest.fixture(scope="session")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random 2-layer ARs with the embedded codec's codebooks, and heads that vLLM's CPU kernels take."""
    folder = tmp_path_factory.mktemp("policy")
    tokenizer = byte_tokenizer(SIZE)
    ids = tokenizer.convert_tokens_to_ids
    shape = {"n_layer": 2, "n_head": 2, "n_local_heads": 2, "head_dim": 32, "dim": 48}
    config = DualARConfig(
        text_config={
            **shape, "vocab_size": len(tokenizer), "intermediate_size": 96, "max_seq_len": 256,
            "attention_qk_norm": True,
        },
        audio_decoder_config={
            **shape, "vocab_size": SIZE, "intermediate_size": 96, "max_seq_len": BOOKS + 1,
            "text_dim": 48, "num_codebooks": BOOKS,
        },
        semantic_start_token_id=ids("<|semantic:0|>"),
        semantic_end_token_id=ids(f"<|semantic:{SIZE - 1}|>"),
        eos_token_id=ids("<|im_end|>"), pad_token_id=ids("<|pad|>"), audio_pad_token_id=ids("<|audio_pad|>"),
    )  # fmt: skip
    torch.manual_seed(0)
    model = DualARForCausalLM(config)
    with torch.no_grad():  # a direction that every audio position has in common makes the end likely: 0.15
        tokens = model.text_model.model.embeddings.weight
        common = torch.nn.functional.normalize(torch.randn(48), dim=0)
        model.audio_decoder.codebook_embeddings.weight += common
        tokens[ids("<|voice|>")] += common
        tokens[ids("<|im_end|>")] = common * math.log(180) / math.sqrt(48)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def configure(policy: Path, tmp_path: Path) -> Configure:
    """A small run in ``tmp_path``; overrides change it."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"text": f"Line {i}."}) + "\n" for i in range(5)))
    file = tmp_path / "run.yaml"
    file.write_text(
        json.dumps(
            {
                "output_dir": str(tmp_path / "runs"),
                "model": {"path": str(policy), "codec": "tiny"},
                "prompts": {"train": str(prompts), "heldout": str(prompts)},
                "rollouts": {"engine": "torch", "group_size": 4, "max_frames": 6},
                "rewards": {
                    "nodes": {"length": {"type": "duration", "per_character": 0.03, "slack": 1.0}},
                    "total": "length",
                },
                "lora": {"r": 4, "alpha": 8},
                "trainer": {"steps": 3, "prompts_per_step": 2, "save_every": 2},
                "evaluation": {"prompts": 3, "samples": 2, "listen": 2},
            }
        )
    )
    return lambda *overrides: load_config(file, overrides)
