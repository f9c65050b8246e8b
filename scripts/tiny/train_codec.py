"""Train the embedded codec: PCA, residual k-means, then the source-filter decoder (no GAN)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.cluster import KMeans
from torch import Tensor
from tqdm import tqdm

from rl.codec.tiny import HOP, STACK, TinyCodec, stack_hops

CROP_HOPS = 64  # 0.8 s
TRUE_SHARE, NOISY_SHARE = 0.1, 0.15  # of the decoder's crops: unquantised features; noisy recordings


def load_frames(folder: Path) -> list[Tensor]:
    """Stacked features ``[T, 328]`` of every utterance."""
    data = np.load(folder / "corpus.npz")
    rows = torch.from_numpy(data["features"]).float()
    return [stack_hops(part) for part in torch.split(rows, data["hops"].tolist())]


def fit_quantiser(codec: TinyCodec, frames: Tensor, seed: int) -> None:
    """PCA to 80 dims and one k-means per residual, on a sample of frames."""
    generator = torch.Generator().manual_seed(seed)
    sample = frames[torch.randperm(len(frames), generator=generator)[:100_000]]
    codec.pca_mean.copy_(sample.mean(0))
    centred = sample - codec.pca_mean
    _, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    codec.pca_basis.copy_(vectors.flip(1)[:, : len(codec.pca_basis)].T)
    residual = centred @ codec.pca_basis.T
    for k, size in enumerate(codec.codebook_sizes):
        means = KMeans(size, init="random", n_init=1, max_iter=20, random_state=seed + k)
        book = torch.from_numpy(means.fit(residual.numpy()).cluster_centers_).float()
        codec.codebooks[k].copy_(book)
        residual = residual - book[torch.cdist(residual, book).argmin(1)]
        print(f"codebook {k}: residual power {residual.pow(2).sum(1).mean():.2f}", flush=True)


def stft_loss(made: Tensor, real: Tensor) -> Tensor:
    """Multi-resolution log-magnitude L1 plus spectral convergence (Yamamoto et al. 2020)."""
    loss = made.new_zeros(())
    for size in (256, 512, 1024):
        window = torch.hann_window(size)
        a, b = (
            torch.stft(x, size, size // 4, window=window, return_complex=True).abs().clamp_min(1e-4)
            for x in (made, real)
        )
        loss = loss + F.l1_loss(a.log(), b.log()) + (a - b).norm() / b.norm()
    return loss / 3


def fit_decoder(codec: TinyCodec, folder: Path, steps: int, batch: int, seed: int) -> None:
    """One learning-rate cycle of the decoder on quantised (a tenth: true) features of crops."""
    data = np.load(folder / "corpus.npz")
    lengths = data["audio_lengths"]
    count = int((lengths > 0).sum())
    audio = torch.split(torch.from_numpy(data["audio"]), lengths[:count].tolist())
    true = torch.split(
        torch.from_numpy(data["features"][: data["hops"][:count].sum()]).float(),
        data["hops"][:count].tolist(),
    )
    coded = [codec.dequantise(codec.quantise(stack_hops(rows)))[: len(rows)] for rows in true]
    long_enough = np.array([len(rows) > CROP_HOPS for rows in true])
    noisy = np.array([u["noisy"] for u in json.loads((folder / "utterances.json").read_text())[:count]])
    pools = [np.flatnonzero(long_enough & ~noisy), np.flatnonzero(long_enough & noisy)]
    rng = np.random.Generator(np.random.Philox(key=seed))
    torch.manual_seed(seed)
    optimizer = torch.optim.AdamW(codec.decoder.parameters(), lr=1e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.5e-3, total_steps=steps, pct_start=0.05)
    bar = tqdm(range(steps), desc="training the decoder", unit="step", mininterval=10)
    for _ in bar:
        rows, waves = [], []
        for i in (rng.choice(pools[rng.random() < NOISY_SHARE]) for _ in range(batch)):
            start = int(rng.integers(len(true[i]) - CROP_HOPS)) // STACK * STACK
            source = true[i] if rng.random() < TRUE_SHARE else coded[i]
            rows.append(source[start : start + CROP_HOPS])
            waves.append(audio[i][start * HOP : (start + CROP_HOPS) * HOP].float() / 32767)
        per_hop = torch.stack(rows)
        made = codec.decoder(per_hop, torch.randn(batch, CROP_HOPS * HOP))
        loss = stft_loss(made, torch.stack(waves))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(codec.decoder.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)


def encode_corpus(codec: TinyCodec, folder: Path) -> None:
    """Write ``codes.npz``: the codes of every utterance, concatenated, and their lengths."""
    codes = [codec.quantise(frames).numpy().astype(np.int16) for frames in load_frames(folder)]
    np.savez(folder / "codes.npz", frames=np.array([len(c) for c in codes]), codes=np.concatenate(codes))


def save(codec: TinyCodec, directory: Path) -> None:
    """Write ``codec_config.json`` and ``codec.safetensors`` (fp16)."""
    directory.mkdir(parents=True, exist_ok=True)
    books, size = len(codec.codebook_sizes), codec.codebook_sizes[0]
    config = {"codec": {"num_codebooks": books, "codebook_size": size, "pca_dim": len(codec.pca_basis)}}
    (directory / "codec_config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(
        {k: v.half().contiguous() for k, v in codec.state_dict().items()}, directory / "codec.safetensors"
    )


def train(folder: Path, out: Path, cycles: Sequence[int], batch: int = 12, seed: int = 0) -> None:
    """The whole recipe: quantiser, codes of the corpus, decoder (steps of each of its learning-rate
    cycles), saved as a codec directory.
    """
    codec = TinyCodec()
    frames = load_frames(folder)
    fit_quantiser(codec, torch.cat(frames), seed)
    for name in ("pca_mean", "pca_basis", "codebooks"):  # what ships is fp16: quantise with that
        getattr(codec, name).copy_(getattr(codec, name).half().float())
    encode_corpus(codec, folder)
    for number, steps in enumerate(cycles):
        fit_decoder(codec, folder, steps, batch, seed + number)
    save(codec, out)
