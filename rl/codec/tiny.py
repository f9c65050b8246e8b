"""The embedded codec: PCA + residual k-means over stacked log-mel/f0 frames, decoded by a source-filter net.

A frame is 50 ms: four hops of 12.5 ms, each 80 log-mel bins, log-f0 and voicing. The decoder predicts a
harmonic and a noise envelope per hop; a band-limited pulse train at the decoded f0 and white noise are
filtered by them in the STFT domain (after DDSP, Engel et al. 2020). Everything is deterministic.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import soxr
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from rl.errors import CheckpointError

SAMPLE_RATE = 16_000
HOP, N_FFT, STACK, N_MELS, N_ENVELOPE = 200, 800, 4, 80, 100
N_BINS = N_FFT // 2 + 1
F0_WEIGHT, VOICING_WEIGHT = 10.0, 2.0
_LOG_FLOOR = 1e-3
_F0_DEFAULT, _F0_MIN, _F0_MAX = 150.0, 55.0, 450.0
_TOP_HARMONIC_HZ = 7_600.0


def mel_filters() -> Tensor:
    """Slaney mel filterbank ``[80, 401]``, 0 to 8 kHz."""
    import librosa  # slow to import, and only encoding needs it

    return torch.from_numpy(librosa.filters.mel(sr=SAMPLE_RATE, n_fft=N_FFT, n_mels=N_MELS))


def log_mel(audio: Tensor, filters: Tensor) -> Tensor:
    """Log-mel of ``[n]`` audio, one row per whole hop, centred on the hop: ``[n // 200, 80]``."""
    hops = audio.shape[-1] // HOP
    padded = F.pad(audio[None, None], (N_FFT // 2 - HOP // 2, N_FFT // 2), mode="reflect")[0, 0]
    spectrum = torch.stft(
        padded, N_FFT, HOP, window=torch.hann_window(N_FFT), center=False, return_complex=True
    ).abs()
    return torch.log(filters @ spectrum[:, :hops] + _LOG_FLOOR).T


def features(audio: Tensor, f0: Tensor, filters: Tensor) -> Tensor:
    """Per-hop features ``[hops, 82]``: log-mel, weighted log-f0 (interpolated through unvoiced), voicing."""
    mel = log_mel(audio, filters)
    pitch = f0[: len(mel)].numpy()
    voiced = pitch > 0
    if voiced.any():
        where = np.arange(len(pitch))
        filled = np.interp(where, where[voiced], np.log(pitch[voiced]))
    else:
        filled = np.full(len(pitch), np.log(_F0_DEFAULT))
    columns = np.stack([F0_WEIGHT * (filled - np.log(_F0_DEFAULT)), VOICING_WEIGHT * voiced], 1)
    return torch.cat([mel, torch.from_numpy(columns).to(mel.dtype)], 1)


def stack_hops(per_hop: Tensor) -> Tensor:
    """``[hops, 82]`` to frames ``[ceil(hops / 4), 328]``; the last hop is repeated to fill the frame."""
    short = -len(per_hop) % STACK
    if short:
        per_hop = torch.cat([per_hop, per_hop[-1:].expand(short, -1)])
    return per_hop.reshape(len(per_hop) // STACK, -1)


class ConvNeXtBlock(nn.Module):
    """Depthwise conv, layer norm, pointwise MLP, residual (Liu et al. 2022), over ``[B, C, hops]``."""

    def __init__(self, width: int, expand: int = 3) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, expand * width)
        self.down = nn.Linear(expand * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).transpose(1, 2))
        return x + self.down(F.gelu(self.up(y))).transpose(1, 2)


def _envelope_basis() -> Tensor:
    """``[100, 401]``: linear interpolation from 100 mel-spaced points to the STFT bins."""
    top = 2595 * np.log10(1 + SAMPLE_RATE / 2 / 700)
    points = 700 * (10 ** (np.linspace(0, top, N_ENVELOPE) / 2595) - 1)
    bins = np.linspace(0, SAMPLE_RATE / 2, N_BINS)
    rows = [np.interp(bins, points, row) for row in np.eye(N_ENVELOPE)]
    return torch.from_numpy(np.stack(rows)).float()


def pulse_train(f0: Tensor) -> Tensor:
    """Band-limited pulses ``[B, hops * 200]`` from per-hop f0 ``[B, hops]`` in Hz, with unit harmonics.

    ``sum_{h=1..H} cos(h t) = sin((H + 1/2) t) / (2 sin(t / 2)) - 1/2``, H the last harmonic under 7.6 kHz.
    """
    per_sample = F.interpolate(f0[:, None], scale_factor=HOP, mode="linear", align_corners=False)[:, 0]
    phase = torch.remainder(torch.cumsum(per_sample.double() / SAMPLE_RATE, -1), 1.0) * 2 * torch.pi
    harmonics = torch.floor(_TOP_HARMONIC_HZ / per_sample.double()) + 0.5
    half_sine = 2 * torch.sin(phase / 2)
    near = half_sine.abs() < 1e-3
    ratio = torch.sin(harmonics * phase) / torch.where(near, torch.ones_like(half_sine), half_sine)
    return (torch.where(near, harmonics, ratio) - 0.5).float()


class SourceFilterDecoder(nn.Module):
    """Per-hop features ``[B, hops, 82]`` to audio ``[B, hops * 200]``."""

    basis: Tensor

    def __init__(self, width: int = 192, blocks: int = 4) -> None:
        super().__init__()
        self.inlet = nn.Conv1d(N_MELS + 2, width, 5, padding=2)
        self.blocks = nn.ModuleList(ConvNeXtBlock(width) for _ in range(blocks))
        self.outlet = nn.Linear(width, 2 * N_ENVELOPE)
        self.register_buffer("basis", _envelope_basis(), persistent=False)

    def forward(self, per_hop: Tensor, noise: Tensor) -> Tensor:
        """``noise``: white, ``[B, hops * 200]``."""
        x = self.inlet(per_hop.transpose(1, 2))
        for block in self.blocks:
            x = block(x)
        logs = self.outlet(x.transpose(1, 2)).float()
        harmonic, hiss = (torch.exp(part @ self.basis - 4.0).transpose(1, 2) for part in logs.chunk(2, -1))
        f0 = _F0_DEFAULT * torch.exp(per_hop[..., N_MELS].float() / F0_WEIGHT)
        source = pulse_train(f0.clamp(_F0_MIN, _F0_MAX)) * 0.1
        window = torch.hann_window(N_FFT, device=per_hop.device)
        hops = per_hop.shape[1]

        def spectrum(wave: Tensor) -> Tensor:
            padded = F.pad(wave[:, None], (N_FFT // 2, N_FFT // 2), mode="reflect")[:, 0]
            return torch.stft(padded, N_FFT, HOP, window=window, center=False, return_complex=True)[
                ..., :hops
            ]

        shaped = spectrum(source) * harmonic + spectrum(noise) * hiss
        return torch.istft(shaped, N_FFT, HOP, window=window, center=True, length=hops * HOP)


class TinyCodec(nn.Module):
    """The embedded codec (implements :class:`rl.codec.base.Codec`): 16 kHz, 20 frames/s."""

    pca_mean: Tensor
    pca_basis: Tensor
    codebooks: Tensor

    def __init__(self, num_codebooks: int = 4, codebook_size: int = 1024, pca_dim: int = 80) -> None:
        super().__init__()
        self.sample_rate = SAMPLE_RATE
        self.frame_rate = SAMPLE_RATE / (HOP * STACK)
        self.codebook_sizes = (codebook_size,) * num_codebooks
        stacked = STACK * (N_MELS + 2)
        self.register_buffer("pca_mean", torch.zeros(stacked))
        self.register_buffer("pca_basis", torch.zeros(pca_dim, stacked))
        self.register_buffer("codebooks", torch.zeros(num_codebooks, codebook_size, pca_dim))
        self.decoder = SourceFilterDecoder()

    @classmethod
    def load(cls, directory: str | Path) -> TinyCodec:
        """From ``codec_config.json`` and ``codec.safetensors``.

        Raises:
            CheckpointError: a file is missing, unreadable or doesn't fit the config.
        """
        folder = Path(directory)
        try:
            config = json.loads((folder / "codec_config.json").read_text())
            with safe_open(folder / "codec.safetensors", "pt") as handle:
                weights = {name: handle.get_tensor(name).float() for name in handle.keys()}  # noqa: SIM118
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(
                f"codec in {folder} can't be read ({error}); model.codec must name a codec"
            ) from error
        try:
            codec = cls(**config["codec"])
            codec.load_state_dict(weights)
        except (KeyError, TypeError, RuntimeError) as error:
            detail = " ".join(str(error).split())
            raise CheckpointError(
                f"codec in {folder}: weights don't fit codec_config.json ({detail})"
            ) from error
        return codec.eval().requires_grad_(False)

    def quantise(self, frames: Tensor) -> Tensor:
        """Stacked features ``[T, 328]`` to codes ``[T, K]``, residual by residual."""
        residual = (frames - self.pca_mean) @ self.pca_basis.T
        columns = []
        for book in self.codebooks:
            column = torch.cdist(residual, book).argmin(1)
            residual = residual - book[column]
            columns.append(column)
        return torch.stack(columns, 1)

    def dequantise(self, codes: Tensor) -> Tensor:
        """Codes ``[..., T, K]`` to per-hop features ``[..., 4 T, 82]``."""
        summed = sum(book[codes[..., k]] for k, book in enumerate(self.codebooks))
        frames = summed @ self.pca_basis + self.pca_mean
        return frames.reshape(*codes.shape[:-2], codes.shape[-2] * STACK, N_MELS + 2)

    @torch.inference_mode()
    def encode(self, wav: np.ndarray, sample_rate: int) -> np.ndarray:
        """Mono float audio ``[n]`` to codes ``[T, K]``, with f0 by pYIN (Mauch and Dixon 2014)."""
        import librosa

        audio = np.asarray(wav, np.float32)
        if audio.ndim != 1 or not np.isfinite(audio).all():
            raise ValueError(f"audio to encode must be mono and finite, got shape {audio.shape}")
        audio = soxr.resample(audio, sample_rate, SAMPLE_RATE)
        audio = np.pad(audio, (0, max(N_FFT - len(audio), -len(audio) % HOP)))
        audio = audio[: len(audio) // HOP * HOP]
        f0, voiced, _ = librosa.pyin(
            audio, fmin=_F0_MIN, fmax=_F0_MAX, sr=SAMPLE_RATE, frame_length=1024, hop_length=HOP, fill_na=0.0
        )
        pitch = torch.from_numpy(np.where(voiced, f0, 0.0)).float()
        return self.quantise(stack_hops(features(torch.from_numpy(audio), pitch, mel_filters()))).numpy()

    def decode(self, codes: np.ndarray) -> np.ndarray:
        """Codes ``[T, K]`` to float32 audio ``[800 T]``.

        Raises:
            ValueError: a code lies outside its codebook, or the shape is not ``[T, K]``.
        """
        return self.decode_batch([codes])[0]

    @torch.inference_mode()
    def decode_batch(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Decode clips of unequal lengths one by one (no padding, so a clip never depends on its batch)."""
        device = self.pca_mean.device
        clips = []
        for one in codes:
            tensor = torch.as_tensor(np.asarray(one), dtype=torch.long, device=device)
            if tensor.ndim != 2 or tensor.shape[1] != len(self.codebook_sizes):
                raise ValueError(f"codes must be [T, {len(self.codebook_sizes)}], got {tuple(tensor.shape)}")
            if len(tensor) == 0:
                clips.append(np.zeros(0, np.float32))
                continue
            if tensor.min() < 0 or tensor.max() >= self.codebook_sizes[0]:
                raise ValueError(f"codes must lie in [0, {self.codebook_sizes[0]}), got {int(tensor.max())}")
            per_hop = self.dequantise(tensor)[None]
            noise = torch.randn(per_hop.shape[1] * HOP, generator=torch.Generator().manual_seed(0))
            audio = self.decoder(per_hop, noise[None].to(device))[0]
            clips.append(audio.clamp(-1, 1).cpu().numpy())
        return clips
