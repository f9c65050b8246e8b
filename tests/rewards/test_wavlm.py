"""The WavLM node on a small random checkpoint, beside what the model itself gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2FeatureExtractor, WavLMConfig, WavLMForXVector

from rewards.catalogue import build_node
from rewards.node import NodeError
from rewards.types import Clip
from rl.errors import CheckpointError


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wavlm")
    torch.manual_seed(0)
    config = WavLMConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8,) * 7,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, tdnn_dim=(16,) * 5, xvector_output_dim=8,
    )  # fmt: skip
    WavLMForXVector(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=True).save_pretrained(folder)
    return folder


def test_the_cosine_is_the_models(checkpoint: Path, speech: list[Clip]) -> None:
    node = build_node({"type": "wavlm", "source": str(checkpoint), "device": "cpu"}, "x")
    node.load()
    clip = speech[0]
    short = replace(clip, audio=clip.audio[:2000])
    value, itself, nobody, brief = node.score(
        [clip, replace(clip, audio=clip.reference), replace(clip, reference=None), short], {}
    )
    model = WavLMForXVector.from_pretrained(checkpoint).eval()

    def vector(audio: np.ndarray) -> np.ndarray:
        level = (audio - audio.mean()) / np.sqrt(audio.var() + 1e-7)
        with torch.no_grad():
            return model(torch.from_numpy(level)[None]).embeddings[0].numpy()

    a, b = vector(clip.audio), vector(clip.reference)
    assert value == pytest.approx(a @ b / np.sqrt((a @ a) * (b @ b)), abs=1e-5)
    assert itself == pytest.approx(1.0, abs=1e-6)
    assert isinstance(nobody, NodeError)
    assert "too short" in str(brief)


def test_a_folder_without_a_model(tmp_path: Path) -> None:
    node = build_node({"type": "wavlm", "source": str(tmp_path)}, "x")
    with pytest.raises(CheckpointError, match="can't be loaded or fetched"):
        node.load()
