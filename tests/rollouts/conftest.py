"""A small random policy in the published layout, of sizes that vLLM's CPU kernels take."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from rl.policy import DualARConfig, DualARForCausalLM

FIXTURE = Path(__file__).parent.parent / "rl" / "fixtures" / "s2_tiny"


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 codebooks of 32 codes, grouped queries, two widths. Its codes depend strongly on those before."""
    folder = tmp_path_factory.mktemp("random_policy")
    raw = json.loads((FIXTURE / "config.json").read_text())
    raw["text_config"] |= {"head_dim": 32, "dim": 64, "intermediate_size": 128}
    raw["audio_decoder_config"] |= {"head_dim": 32, "text_dim": 64}
    raw["dtype"] = "float32"
    for part in ("text_config", "audio_decoder_config"):
        raw[part]["initializer_range"] = 0.25
    (folder / "config.json").write_text(json.dumps(raw))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        DualARForCausalLM(DualARConfig.from_pretrained(folder)).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(FIXTURE / name, folder / name)
    return folder
