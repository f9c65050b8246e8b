"""Speech quality by DNSMOS, non-intrusive; the ONNX models ship in the speechmos package.

P.808: Reddy et al., "DNSMOS" (ICASSP 2021). P.835 (signal, background, overall): Reddy et al., "DNSMOS P.835"
(ICASSP 2022); its polynomials are those published with the models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import as_file, files
from importlib.resources.abc import Traversable
from typing import Any

import librosa
import numpy as np
import onnxruntime
import torch

from rewards.audio import SAMPLE_RATE, at_16k, at_level
from rewards.node import Answer, Model, Node, NodeError, Row, option
from rewards.types import Clip

WINDOW = 144160
"""Samples that both models want: 9.01 s."""

_P835 = {
    "sig": (0, np.poly1d([-0.08397278, 1.22083953, 0.0052439])),
    "bak": (1, np.poly1d([-0.13166888, 1.60915514, -0.39604546])),
    "ovrl": (2, np.poly1d([-0.06766283, 1.11546468, 0.04602535])),
}
"""Column of the model's answer, and the map from it to opinion scores."""


@dataclass
class Dnsmos(Node):
    """Predicted mean opinion score, (mos - 1) / 4: 0 is bad, 1 excellent.

    The clip is brought to ``level`` first, since the models punish a low level, and repeated to fill 9.01 s;
    of longer clips, windows that together cover them are averaged. The models rate faint noise above shuffled
    speech: put a sanity gate in front.
    """

    scale: str = option(
        "p808", "opinion predicted: p808 is some 20 times as fast as the P.835 ones", choices=("p808", *_P835)
    )
    level: float = option(-26.0, "RMS the clip is brought to (dB of full scale)", at_most=0)
    batch_size: int = option(16, "windows judged at once", at_least=1)
    _session: Any = field(default=None, init=False, repr=False, compare=False)

    @property
    def _file(self) -> Traversable:
        name = "model_v8.onnx" if self.scale == "p808" else "sig_bak_ovr.onnx"
        return files("speechmos") / "dnsmos_models" / name

    def models(self) -> Sequence[Model]:
        with as_file(self._file) as path:
            return [Model(f"DNSMOS {self.scale}", path.stat().st_size, "MIT")]

    def load(self) -> None:
        with as_file(self._file) as path:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            self._session = onnxruntime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )

    def score(self, clips: Sequence[Clip], inputs: Mapping[str, Sequence[Any]]) -> Sequence[Row]:
        rows: list[Row] = []
        windows: list[np.ndarray] = []
        owners: list[int] = []
        for clip in clips:
            try:
                cut = cut_windows(at_level(at_16k(clip.audio, clip.sample_rate), self.level))
                owners += [len(rows)] * len(cut)
                windows += cut
                rows.append(np.nan)
            except NodeError as error:
                rows.append(error)
        parts = [self._mos(windows[i : i + self.batch_size]) for i in range(0, len(windows), self.batch_size)]
        for i in set(owners):
            mos = float(np.concatenate(parts)[np.array(owners) == i].mean())
            rows[i] = Answer({"": (mos - 1) / 4}, {"mos": mos})
        return rows

    def _mos(self, windows: Sequence[np.ndarray]) -> np.ndarray:
        features = np.stack([log_mel(w) for w in windows]) if self.scale == "p808" else np.stack(windows)
        (raw,) = self._session.run(None, {"input_1": features})
        if self.scale == "p808":
            return np.asarray(raw[:, 0])
        column, polynomial = _P835[self.scale]
        return np.asarray(polynomial(raw[:, column]))


def cut_windows(audio: np.ndarray) -> list[np.ndarray]:
    """``audio`` repeated to 9.01 s, or evenly spaced windows of 9.01 s that cover it."""
    if len(audio) <= WINDOW:
        return [np.resize(audio, WINDOW)]
    starts = np.linspace(0, len(audio) - WINDOW, -(-len(audio) // WINDOW)).round().astype(int)
    return [audio[start : start + WINDOW] for start in starts]


def log_mel(window: np.ndarray) -> np.ndarray:
    """Features of the P.808 model: float32 ``[900, 120]``; 1 is the loudest bin, 0 is 40 dB below."""
    mel = librosa.feature.melspectrogram(
        y=window[:-160], sr=SAMPLE_RATE, n_fft=321, hop_length=160, n_mels=120
    )
    return np.asarray((librosa.power_to_db(mel, ref=np.max) + 40) / 40, np.float32).T
