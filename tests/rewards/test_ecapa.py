"""The ECAPA node on a small random encoder, saved here in speechbrain's own layout."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from speechbrain.lobes.features import Fbank
from speechbrain.lobes.models.ECAPA_TDNN import ECAPA_TDNN, Classifier
from speechbrain.processing.features import InputNormalization

from rewards.catalogue import build_node
from rewards.node import NodeError
from rewards.nodes.ecapa import Ecapa, forget_lazy_modules
from rewards.types import Clip

forget_lazy_modules()  # speechbrain's imports above left some

SIZES = {
    "channels": [8, 8, 8, 8, 24],
    "kernel_sizes": [5, 3, 3, 3, 1],
    "dilations": [1, 2, 3, 4, 1],
    "attention_channels": 8,
    "res2net_scale": 4,
    "se_channels": 8,
    "lin_neurons": 16,
}
HYPERPARAMETERS = f"""\
compute_features: !new:speechbrain.lobes.features.Fbank
    n_mels: 80
mean_var_norm: !new:speechbrain.processing.features.InputNormalization
    norm_type: sentence
    std_norm: False
embedding_model: !new:speechbrain.lobes.models.ECAPA_TDNN.ECAPA_TDNN
    input_size: 80
{"".join(f"    {name}: {value}" + chr(10) for name, value in SIZES.items())}\
classifier: !new:speechbrain.lobes.models.ECAPA_TDNN.Classifier
    input_size: 16
    out_neurons: 2
modules:
    compute_features: !ref <compute_features>
    mean_var_norm: !ref <mean_var_norm>
    embedding_model: !ref <embedding_model>
    classifier: !ref <classifier>
label_encoder: !new:speechbrain.dataio.encoder.CategoricalEncoder
pretrainer: !new:speechbrain.utils.parameter_transfer.Pretrainer
    loadables:
        embedding_model: !ref <embedding_model>
        classifier: !ref <classifier>
        label_encoder: !ref <label_encoder>
    paths:
        embedding_model: FOLDER/embedding_model.ckpt
        classifier: FOLDER/classifier.ckpt
        label_encoder: FOLDER/label_encoder.txt
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ecapa")
    torch.manual_seed(0)
    torch.save(ECAPA_TDNN(80, **SIZES).state_dict(), folder / "embedding_model.ckpt")
    torch.save(Classifier(16, out_neurons=2).state_dict(), folder / "classifier.ckpt")
    (folder / "label_encoder.txt").write_text("'a' => 0\n'b' => 1\n================\n'starting_index' => 0\n")
    (folder / "hyperparams.yaml").write_text(HYPERPARAMETERS.replace("FOLDER", str(folder)))
    return folder


def test_the_node_embeds_as_the_modules_do(source: Path, speech: list[Clip]) -> None:
    node = build_node({"type": "ecapa", "source": str(source), "device": "cpu"}, "x")
    assert isinstance(node, Ecapa)
    node.load()
    (mine,) = node.embed([speech[0].audio])
    model = ECAPA_TDNN(80, **SIZES)
    model.load_state_dict(torch.load(source / "embedding_model.ckpt", weights_only=True))
    with torch.inference_mode():
        features = Fbank(n_mels=80)(torch.from_numpy(speech[0].audio)[None])
        normed = InputNormalization(norm_type="sentence", std_norm=False)(features, torch.ones(1))
        expected = model.eval()(normed)[0, 0].numpy()
    np.testing.assert_allclose(mine, expected / np.linalg.norm(expected), atol=1e-5)

    silent = replace(speech[0], audio=np.zeros(0, np.float32))
    same = replace(speech[0], reference=speech[0].audio)
    rows = node.score([same, speech[0], silent], {})
    assert rows[0] == pytest.approx(1.0, abs=1e-5)
    assert isinstance(rows[1], float)
    assert -1 <= rows[1] < 1
    assert isinstance(rows[2], NodeError)


def test_modules_can_be_looked_at_when_speechbrain_is_loaded() -> None:
    for module in list(sys.modules.values()):
        getattr(module, "__file__", None)
