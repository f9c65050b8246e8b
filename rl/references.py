"""Reference voices: audio files of a prompt, read, encoded by the codec, and kept by their content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import soundfile

from rewards.audio import fingerprint
from rl.codec.base import Codec
from rl.errors import PromptError
from rollouts.types import Prompt, Reference


@lru_cache(maxsize=256)
def read_voice(path: str) -> tuple[np.ndarray, int]:
    """Mono float32 audio ``[n]`` of a file in any format that soundfile reads, and its rate in Hz.

    Raises:
        PromptError: it can't be read.
    """
    try:
        audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (OSError, soundfile.SoundFileError) as error:
        raise PromptError(f"reference_audio {path}: can't be read ({error}); name an audio file") from error
    return audio.mean(1), rate


class ReferenceEncoder:
    """Turns the voices that prompts name as files into codes, each content once.

    The codes of a second of speech take under 2 kB, so they are all kept.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self._codes: dict[bytes, np.ndarray] = {}

    def encoded(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """``prompts`` with the `references` that their meta names (see `rl.prompts_file.load_prompts`).

        Raises:
            PromptError: a file can't be read, or holds no audio.
        """
        return [
            replace(
                prompt,
                references=tuple(
                    Reference(named["text"], self._encode(named["audio"]))
                    for named in prompt.meta["references"]
                ),
            )
            if "references" in prompt.meta
            else prompt
            for prompt in prompts
        ]

    def _encode(self, path: str) -> np.ndarray:
        audio, rate = read_voice(path)
        key = fingerprint(audio, rate)
        if key not in self._codes:
            if len(audio) == 0 or not np.isfinite(audio).all():
                raise PromptError(f"reference {path}: holds no audio, or none that is finite; replace it")
            self._codes[key] = self.codec.encode(audio, rate)
        return self._codes[key]
