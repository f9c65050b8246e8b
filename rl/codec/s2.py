"""S2's codec: a causal convolutional autoencoder with one semantic and nine residual codebooks.

44.1 kHz, 2,048 samples (46 ms) a frame. Module names are those of the published ``codec.pth``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from math import prod
from typing import cast

import numpy as np
import soxr
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from rl.codec.s2_config import QuantizerConfig, S2CodecConfig
from rl.codec.s2_layers import (
    Branch,
    CausalConv,
    CausalTransposedConv,
    ConvNeXt,
    ResidualCodebooks,
    ResidualUnit,
    Snake,
    WindowTransformer,
    left_context,
)

DILATIONS = (1, 3, 9)
CHUNK_FRAMES = 128
"""Frames whose audio the convolutions read or write at once: 6 s, up to 100 MB a layer."""
BATCH_FRAMES = 512
"""Frames of all clips together that are decoded at once."""


class Encoder(Branch):
    """Audio ``[B, 1, n]``, whole frames of it, to features ``[B, C, n / stride]``."""

    def __init__(self, config: S2CodecConfig) -> None:
        width = config.encoder_dim
        stages: list[nn.Module] = [CausalConv(1, width, 7)]
        for stride, layers in zip(config.encoder_rates, config.encoder_transformer_layers, strict=True):
            block: list[nn.Module] = [ResidualUnit(width, dilation) for dilation in DILATIONS]
            block += [Snake(width), CausalConv(width, 2 * width, 2 * stride, stride=stride)]
            width *= 2
            if layers:
                shape = config.encoder_transformer
                block.append(WindowTransformer(shape.shape(layers, width), shape.window_size))
            stages.append(Branch(*block))
        super().__init__(*stages, Snake(width), CausalConv(width, width, 3))
        self.hop = config.hop

    def forward(self, x: Tensor) -> Tensor:
        """What comes before the first transformer, where the sequence is long, runs in chunks."""
        layers: list[nn.Module] = []
        for stage in self.block:
            layers += stage.block if isinstance(stage, Branch) else [stage]
        places = [i for i, layer in enumerate(layers) if isinstance(layer, WindowTransformer)]
        first = places[0] if places else len(layers)
        convolutions, rest = nn.Sequential(*layers[:first]), nn.Sequential(*layers[first:])
        stride = prod(layer.stride for layer in convolutions if isinstance(layer, CausalConv))
        context = -(-left_context(convolutions) // stride) * stride
        parts = []
        for start in range(0, x.shape[-1], CHUNK_FRAMES * self.hop):
            lead = min(start, context)
            chunk = x[..., start - lead : start + CHUNK_FRAMES * self.hop]
            parts.append(convolutions(chunk)[..., lead // stride :])
        return rest(torch.cat(parts, -1))


class Decoder(nn.Module):
    """Features ``[B, C, n / stride]`` to audio ``[B, 1, n]``."""

    def __init__(self, config: S2CodecConfig) -> None:
        super().__init__()
        width = config.decoder_dim
        stages: list[nn.Module] = [CausalConv(config.quantizer.input_dim, width, 7)]
        for stride in config.decoder_rates:
            block = [Snake(width), CausalTransposedConv(width, width // 2, 2 * stride, stride=stride)]
            width //= 2
            stages.append(Branch(*block, *[ResidualUnit(width, dilation) for dilation in DILATIONS]))
        self.model = nn.Sequential(*stages, Snake(width), CausalConv(width, 1, 7), nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)


class Quantizer(nn.Module):
    """Features to codes, at a fourth of their rate, and back."""

    def __init__(self, config: QuantizerConfig) -> None:
        super().__init__()
        width, size, dim = config.input_dim, config.codebook_size, config.codebook_dim
        factors = config.downsample_factor
        self.semantic_quantizer = ResidualCodebooks(1, width, config.semantic_codebook_size, dim)
        self.quantizer = ResidualCodebooks(config.n_codebooks, width, size, dim)
        self.downsample = nn.Sequential(
            *[
                nn.Sequential(CausalConv(width, width, factor, stride=factor, normed=False), ConvNeXt(width))
                for factor in factors
            ]
        )
        self.upsample = nn.Sequential(
            *[
                nn.Sequential(
                    CausalTransposedConv(width, width, factor, stride=factor, normed=False), ConvNeXt(width)
                )
                for factor in reversed(factors)
            ]
        )
        transformer = config.transformer
        self.pre_module = WindowTransformer(transformer.shape, transformer.window_size)
        self.post_module = WindowTransformer(transformer.shape, transformer.window_size)

    def encode(self, x: Tensor) -> Tensor:
        """Features ``[B, C, 4 T]`` to codes ``[B, T, K]``."""
        x = self.pre_module(self.downsample(x))
        semantic = self.semantic_quantizer.encode(x)
        residual = self.quantizer.encode(x - self.semantic_quantizer.decode(semantic))
        return torch.cat([semantic, residual], -1)

    def latents(self, codes: Tensor) -> Tensor:
        """Codes ``[B, T, K]`` to what `upsample` brings back to the features' rate, ``[B, C, T]``."""
        semantic, residual = codes[..., :1], codes[..., 1:]
        return self.post_module(self.semantic_quantizer.decode(semantic) + self.quantizer.decode(residual))


class S2Codec(nn.Module):
    """S2's codec (implements :class:`rl.codec.base.Codec`).

    Weights are those of a fresh module; `rl.codec.s2_loading.load_s2_codec` reads them.
    """

    def __init__(self, config: S2CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.sample_rate = config.sample_rate
        self.hop = config.hop
        self.frame_rate = config.sample_rate / config.hop
        self.codebook_sizes = config.codebook_sizes
        self.encoder = Encoder(config)
        self.quantizer = Quantizer(config.quantizer)
        self.decoder = Decoder(config)
        self.context = left_context(self.quantizer.upsample, self.decoder)

    def fold(self) -> None:
        """Compute the weight-normed weights once for all, for inference."""
        for module in list(self.modules()):
            if is_parametrized(module):
                remove_parametrizations(module, "weight")

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @torch.inference_mode()
    def encode(self, wav: np.ndarray, sample_rate: int) -> np.ndarray:
        """Mono float audio ``[n]`` at any rate to int64 codes ``[ceil(n / 2048), K]``, ``n`` at 44.1 kHz.

        Raises:
            ValueError: it isn't mono or not finite.
        """
        audio = np.asarray(wav, np.float32)
        if audio.ndim != 1 or not np.isfinite(audio).all():
            raise ValueError(f"audio to encode must be mono and finite, got shape {audio.shape}")
        if sample_rate != self.sample_rate:
            audio = soxr.resample(audio, sample_rate, self.sample_rate)
        if len(audio) == 0:
            return np.zeros((0, len(self.codebook_sizes)), np.int64)
        tensor = torch.from_numpy(audio).to(self.device)
        with _float32():
            features = self.encoder(F.pad(tensor, (0, -len(audio) % self.hop))[None, None])
            return self.quantizer.encode(features)[0].cpu().numpy()

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes ``[T, K]`` to float32 audio ``[2048 T]`` at 44.1 kHz.

        Raises:
            ValueError: a code lies outside its codebook, or the shape is not ``[T, K]``.
        """
        return self.decode_batch([codes])[0]

    @torch.inference_mode()
    def decode_batch(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """As :meth:`decode`, for codes of unequal lengths; beside the audio itself memory is bounded.

        All is causal, so what pads a clip at its end can't be heard in it: results differ from those of
        clips alone in the last digits of a float32 only.
        """
        clips = [self._checked(one) for one in codes]
        audio = [np.zeros(0, np.float32)] * len(clips)
        for rows in _groups([len(clip) for clip in clips]):
            padded = nn.utils.rnn.pad_sequence([clips[row] for row in rows], batch_first=True)
            with _float32():
                waves = self._audio(self.quantizer.latents(padded.to(self.device)))
            for row, wave in zip(rows, waves, strict=True):
                audio[row] = wave[: len(clips[row]) * self.hop].numpy().copy()
        return audio

    def _audio(self, latents: Tensor) -> Tensor:
        """Latents ``[B, C, T]`` to audio ``[B, 2048 T]`` on the CPU, in chunks that see what is before."""
        length = latents.shape[-1]
        audio = torch.empty(len(latents), length * self.hop)
        for start in range(0, length, CHUNK_FRAMES):
            lead = min(start, self.context)
            chunk = latents[..., start - lead : start + CHUNK_FRAMES]
            wave = self.decoder(self.quantizer.upsample(chunk))[:, 0, lead * self.hop :]
            audio[:, start * self.hop : (start + CHUNK_FRAMES) * self.hop] = wave.cpu()
        return audio

    def _checked(self, codes: np.ndarray) -> Tensor:
        tensor = torch.as_tensor(np.asarray(codes), dtype=torch.long)
        if tensor.ndim != 2 or tensor.shape[1] != len(self.codebook_sizes):
            raise ValueError(f"codes must be [T, {len(self.codebook_sizes)}], got {tuple(tensor.shape)}")
        wrong = (tensor < 0) | (tensor >= torch.tensor(self.codebook_sizes))
        if wrong.any():
            frame, book = cast(list[int], wrong.nonzero()[0].tolist())
            raise ValueError(
                f"codes must lie in [0, {self.codebook_sizes[book]}) in codebook {book}, "
                f"got {int(tensor[frame, book])} in frame {frame}"
            )
        return tensor


def _float32() -> AbstractContextManager[None]:
    """Keep a GPU's convolutions from TF32, their default, so that it finds the codes that a CPU finds."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows to decode together: like lengths, and `BATCH_FRAMES` at most at once. Empty clips are in none."""
    group: list[int] = []
    heard = [row for row, length in enumerate(lengths) if length]
    for row in sorted(heard, key=lambda row: -lengths[row]):
        if group and (len(group) + 1) * min(lengths[group[0]], CHUNK_FRAMES) > BATCH_FRAMES:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
