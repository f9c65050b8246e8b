"""The embedded codec: contract, determinism, and real speech that stays the same speech."""

from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from rl.codec.loading import load_codec
from rl.codec.tiny import TinyCodec, pulse_train
from rl.errors import CheckpointError
from rl.policy.loading import EMBEDDED


@pytest.fixture(scope="module")
def speech() -> np.ndarray:
    audio, rate = soundfile.read(EMBEDDED / "prompts" / "speaker_1.flac", dtype="float32")
    assert rate == 16_000
    return audio[: 2 * rate]


def test_round_trip_keeps_the_spectrum(speech: np.ndarray) -> None:
    codec = load_codec("tiny")
    codes = codec.encode(speech, 16_000)
    assert codes.shape == (40, 4)
    audio = codec.decode(codes)
    assert audio.shape == (codes.shape[0] / codec.frame_rate * codec.sample_rate,)

    window = torch.hann_window(512)

    def bands(wave: np.ndarray) -> np.ndarray:
        power = torch.stft(torch.from_numpy(wave), 512, 256, window=window, return_complex=True)
        return power.abs()[:256].reshape(16, 16, -1).mean(1).clamp_min(1e-3).log().flatten().numpy()

    assert np.corrcoef(bands(speech), bands(audio))[0, 1] > 0.85


def test_encoding_resamples(speech: np.ndarray) -> None:
    codec = load_codec("tiny")
    assert codec.encode(np.repeat(speech, 2), 32_000).shape == codec.encode(speech, 16_000).shape


def test_a_batch_decodes_as_one_by_one() -> None:
    codec = load_codec("tiny")
    rng = np.random.Generator(np.random.Philox(key=0))
    codes = [rng.integers(0, 1024, (n, 4)) for n in (3, 11, 0)]
    for one, alone in zip(codec.decode_batch(codes), map(codec.decode, codes), strict=True):
        np.testing.assert_array_equal(one, alone)


@pytest.mark.parametrize("codes", [np.full((2, 4), 1024), np.full((2, 4), -1), np.zeros((2, 3), int)])
def test_codes_outside_the_books_are_refused(codes: np.ndarray) -> None:
    with pytest.raises(ValueError, match="codes must"):
        load_codec("tiny").decode(codes)


def test_quantiser_picks_the_nearest_residual() -> None:
    codec = TinyCodec(num_codebooks=2, codebook_size=2, pca_dim=1)
    codec.pca_basis[0, 0] = 1.0
    codec.codebooks.copy_(torch.tensor([[[0.0], [10.0]], [[-1.0], [2.0]]]))
    frames = torch.zeros(3, 328)
    frames[:, 0] = torch.tensor([11.5, -0.8, 9.0])
    assert codec.quantise(frames).tolist() == [[1, 1], [0, 0], [1, 0]]
    assert codec.dequantise(codec.quantise(frames))[::4, 0].tolist() == [12.0, -1.0, 9.0]


def test_pulse_train_has_unit_harmonics() -> None:
    wave = pulse_train(torch.full((1, 80), 100.0))[0].numpy()  # one second: bins are whole Hz
    spectrum = np.abs(np.fft.rfft(wave)) / (len(wave) / 2)
    np.testing.assert_allclose(spectrum[100:7_600:100], 1.0, atol=0.02)
    assert spectrum[7_750:].max() < 0.02
    assert spectrum[150] < 0.02


def test_a_broken_codec_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"model\.codec"):
        load_codec(str(tmp_path))
