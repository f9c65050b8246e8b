"""Error rate by an ASR unlike the neural ones: CMU Sphinx's English model, which ships in its package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pocketsphinx as sphinx

from rewards.audio import SAMPLE_RATE, at_16k, at_level
from rewards.node import Answer, Model, Node, option
from rewards.text import error_rate
from rewards.types import Clip


@dataclass
class Pocketsphinx(Node):
    """CER or WER of what CMU Sphinx hears, 0 to 1, and the transcript as ``.text``.

    It errs far more than Whisper but in other ways, which makes it a witness: what a policy gains by pleasing
    Whisper alone, this doesn't see. English only.
    """

    unit: str = option("char", "what errors are counted in", choices=("char", "word"))
    _decoder: Any = field(default=None, init=False, repr=False, compare=False)

    def texts(self) -> tuple[str, ...]:
        return ("text",)

    def models(self) -> Sequence[Model]:
        files = Path(sphinx.get_model_path("en-us")).rglob("*")
        size = sum(file.stat().st_size for file in files if file.is_file())
        return [Model("CMU Sphinx en-us", size, "BSD-2-Clause")]

    def load(self) -> None:
        # cmn=batch: features are normalised over each clip alone, so that order doesn't matter
        # the other options: one narrow pass, in a third of the time for about .03 more CER
        self._decoder = sphinx.Decoder(
            samprate=SAMPLE_RATE,
            cmn="batch",
            loglevel="FATAL",
            fwdflat=False,
            bestpath=False,
            maxhmmpf=3000,
            maxwpf=20,
        )

    def score_clip(self, clip: Clip, **inputs: Any) -> Answer:
        audio = at_level(at_16k(clip.audio, clip.sample_rate), dbfs=-23.0)
        self._decoder.start_utt()
        self._decoder.process_raw(np.round(audio * 32767).astype(np.int16).tobytes(), full_utt=True)
        self._decoder.end_utt()
        heard = self._decoder.hyp()
        text = heard.hypstr if heard is not None else ""
        return Answer({"": error_rate(clip.spoken, text, self.unit, "english"), "text": text})
