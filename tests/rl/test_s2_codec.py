"""S2's codec against the published implementation's outputs; batches, chunks, and files that are refused."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from rl.codec import s2
from rl.codec.loading import load_codec
from rl.codec.parity import codec_parity
from rl.codec.s2 import S2Codec
from rl.codec.s2_config import QuantizerTransformer, S2CodecConfig
from rl.codec.s2_layers import WindowTransformer
from rl.codec.s2_loading import load_s2_codec
from rl.errors import CheckpointError
from rl.policy.layers import rope_table

GOLDEN = Path(__file__).parent / "fixtures" / "s2_codec_tiny"
BOOKS = 10


@pytest.fixture(scope="module")
def codec() -> S2Codec:
    return load_s2_codec(GOLDEN)


@pytest.fixture(scope="module")
def published() -> S2Codec:
    """The published shape, without weights."""
    with torch.device("meta"):
        return S2Codec(S2CodecConfig())


def _codes(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 64, (frames, BOOKS))


def test_matches_the_published_implementation() -> None:
    differences = codec_parity(GOLDEN)
    assert differences["codes"] == 0
    assert max(differences.values()) <= 1e-4


def test_the_parity_script_compares_codecs_too(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "codec")
    golden = load_file(GOLDEN / "golden.safetensors")
    golden["codes"][3, 5] = (golden["codes"][3, 5] + 1) % 64
    save_file(golden, tmp_path / "codec" / "golden.safetensors")
    script = Path(__file__).parents[2] / "scripts" / "parity.py"
    done = subprocess.run(
        [sys.executable, script, "--codec", tmp_path / "codec"], capture_output=True, text=True
    )
    assert (done.returncode, len(done.stdout.splitlines())) == (1, 1)
    assert json.loads(done.stdout)["codes"] == 1


def test_the_published_size(published: S2Codec) -> None:
    def size(name: str) -> int:
        return sum(p.numel() for p in published.get_submodule(name).parameters())

    assert sum(p.numel() for p in published.parameters()) == 391_430_530
    assert len(published.state_dict()) == 535
    assert size("encoder.block") == 76_851_328
    assert size("decoder.model") == 54_104_162
    assert size("quantizer.downsample") == size("quantizer.upsample") == 21_006_336
    assert size("quantizer.pre_module") == size("quantizer.post_module") == 109_085_696
    assert size("quantizer.semantic_quantizer") == 51_216
    assert size("quantizer.quantizer") == 239_760
    assert published.hop == 2048
    assert published.frame_rate == pytest.approx(21.533, abs=1e-3)
    assert published.codebook_sizes == (4096, *[1024] * 9)


def test_a_batch_of_unequal_lengths_decodes_as_one_by_one(codec: S2Codec) -> None:
    lengths = (9, 0, 14, 1, 14)
    codes = [_codes(frames, seed) for seed, frames in enumerate(lengths)]
    for frames, one, alone in zip(lengths, codec.decode_batch(codes), map(codec.decode, codes), strict=True):
        assert one.shape == (frames * 2048,)
        np.testing.assert_allclose(one, alone, atol=1e-6)


def test_every_clip_is_in_one_group_and_groups_are_bounded() -> None:
    lengths = [3, 500, 0, 90, 128, 127, 1, 90, 1000, 0, 64]
    groups = list(s2._groups(lengths))
    assert sorted(row for rows in groups for row in rows) == [0, 1, 3, 4, 5, 6, 7, 8, 10]
    for rows in groups:
        longest = max(lengths[row] for row in rows)
        assert len(rows) * min(longest, s2.CHUNK_FRAMES) <= s2.BATCH_FRAMES


def test_chunks_decode_as_the_whole(codec: S2Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = _codes(45)
    monkeypatch.setattr(s2, "CHUNK_FRAMES", 1000)
    whole = codec.decode(codes)
    monkeypatch.setattr(s2, "CHUNK_FRAMES", 4)
    np.testing.assert_allclose(codec.decode(codes), whole, atol=1e-6)


def test_chunks_encode_as_the_whole(codec: S2Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    audio = torch.randn(1, 1, 9 * 2048, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(s2, "CHUNK_FRAMES", 1000)
    with torch.inference_mode():
        whole = codec.encoder(audio)
        monkeypatch.setattr(s2, "CHUNK_FRAMES", 1)
        torch.testing.assert_close(codec.encoder(audio), whole, atol=1e-5, rtol=0)


def test_the_context_of_a_chunk_is_what_the_convolutions_see(codec: S2Codec) -> None:
    latents = torch.randn(1, 128, 24, generator=torch.Generator().manual_seed(0))
    other = latents.clone()
    other[..., 0] += 1.0
    waves = [codec.decoder(codec.quantizer.upsample(x))[0, 0] for x in (latents, other)]
    (heard,) = torch.nonzero((waves[0] - waves[1]).abs() > 0, as_tuple=True)
    assert int(heard.max()) // codec.hop == codec.context


def test_decoding_never_looks_ahead(codec: S2Codec) -> None:
    codes = _codes(30)
    np.testing.assert_allclose(codec.decode(codes[:11]), codec.decode(codes)[: 11 * 2048], atol=1e-6)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 50])
def test_windows_add_up_to_banded_attention(length: int) -> None:
    torch.manual_seed(0)
    shape = QuantizerTransformer(n_layer=3, n_head=2, dim=32, intermediate_size=48, head_dim=16).shape
    model = WindowTransformer(shape, window=16)
    x = torch.randn(2, 32, length)
    places = torch.arange(length)
    behind = places[:, None] - places
    table = rope_table(places, 16, 10_000.0)
    y = x.transpose(1, 2)
    for layer in model.layers:
        y, _ = layer(y, table, (behind >= 0) & (behind < 16), None)
    torch.testing.assert_close(model(x), model.norm(y).transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_encoding_pads_and_resamples(codec: S2Codec) -> None:
    tone = np.sin(np.arange(44_100) * 2 * np.pi * 220 / 44_100).astype(np.float32)
    assert codec.encode(tone[:2048], 44_100).shape == (1, BOOKS)
    assert codec.encode(tone[:2049], 44_100).shape == (2, BOOKS)
    assert codec.encode(tone[::2], 22_050).shape == codec.encode(tone, 44_100).shape == (22, BOOKS)
    assert codec.encode(tone[:0], 44_100).shape == (0, BOOKS)
    with pytest.raises(ValueError, match="mono and finite"):
        codec.encode(np.stack([tone, tone]), 44_100)


def test_codes_that_the_codec_does_not_know_are_refused(codec: S2Codec, published: S2Codec) -> None:
    codes = np.full((3, BOOKS), 1023)
    codes[:, 0] = 4095
    codes[2, 7] = 1024
    with pytest.raises(ValueError, match=r"\[0, 1024\) in codebook 7, got 1024 in frame 2"):
        published.decode(codes)
    with pytest.raises(ValueError, match=r"\[0, 64\) in codebook 1"):
        codec.decode(np.full((1, BOOKS), 64))
    with pytest.raises(ValueError, match="codes must lie"):
        codec.decode(np.full((1, BOOKS), -1))
    with pytest.raises(ValueError, match=r"\[T, 10\]"):
        codec.decode(np.zeros((4, 9), int))


def test_a_file_of_training_loads_the_same(codec: S2Codec, tmp_path: Path) -> None:
    state = torch.load(GOLDEN / "codec.pth", weights_only=True)
    wrapped = {f"generator.{name}": tensor for name, tensor in state.items()}
    wrapped["generator.quantizer.pre_module.freqs_cis"] = torch.zeros(3)
    wrapped["discriminator.weight"] = torch.zeros(3)
    torch.save({"state_dict": wrapped}, tmp_path / "some.ckpt")
    shutil.copy(GOLDEN / "codec_config.json", tmp_path)
    other = load_codec(str(tmp_path / "some.ckpt"))
    np.testing.assert_array_equal(other.decode(_codes(3)), codec.decode(_codes(3)))


class _Code:
    """Unpickling it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (str(self.path),)


def _without(state: dict[str, torch.Tensor], folder: Path) -> object:
    del state["decoder.model.0.conv.bias"]
    return state


def _misshapen(state: dict[str, torch.Tensor], folder: Path) -> object:
    state["quantizer.post_module.norm.weight"] = torch.zeros(7)
    return state


def _with_more(state: dict[str, torch.Tensor], folder: Path) -> object:
    return {**state, "vocoder.weight": torch.zeros(1)}


def _with_code(state: dict[str, torch.Tensor], folder: Path) -> object:
    return {**state, "code": _Code(folder / "ran")}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_without, "tensor `decoder.model.0.conv.bias` is missing"),
        (_misshapen, "tensor `quantizer.post_module.norm.weight` is 7, not 128"),
        (_with_more, "first `vocoder.weight`"),
        (_with_code, "holds more than tensors, which may run code"),
        (lambda state, folder: [1, 2], "must hold tensors by name"),
    ],
)
def test_wrong_files_are_refused_in_one_line(
    tmp_path: Path, change: Callable[[dict[str, torch.Tensor], Path], object], message: str
) -> None:
    shutil.copy(GOLDEN / "codec_config.json", tmp_path)
    state = torch.load(GOLDEN / "codec.pth", weights_only=True)
    torch.save(change(state, tmp_path), tmp_path / "codec.pth")
    assert message in _refusal(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "codec.pth").write_bytes((GOLDEN / "codec.pth").read_bytes()[:100_000])
    assert "can't be read" in _refusal(tmp_path)
    (tmp_path / "codec.pth").write_bytes(b"")
    assert "can't be read" in _refusal(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"encoder_dmi": 8}, "unknown key `encoder_dmi`"),
        ({"encoder_dim": 8.5}, "`encoder_dim` must be a whole number from 1, not 8.5"),
        ({"encoder_dim": 16}, "quantizer.input_dim isn't encoder_dim doubled"),
        ({"encoder_rates": 2}, "`encoder_rates` must be a list of whole numbers"),
        ({"encoder_rates": [2, 4]}, "one number per encoder_rates"),
        ({"decoder_rates": [8, 8, 4, 4]}, "the same product"),
        ({"quantizer": {"transformer": {"norm_eps": 0}}}, "`norm_eps` must be a number above 0"),
        ({"quantizer": 3}, "`quantizer`: must be a JSON object"),
    ],
)
def test_wrong_configs_are_refused_in_one_line(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    shutil.copy(GOLDEN / "codec.pth", tmp_path)
    config = json.loads((GOLDEN / "codec_config.json").read_text())
    (tmp_path / "codec_config.json").write_text(json.dumps({**config, **change}))
    assert message in _refusal(tmp_path)


def _refusal(folder: Path) -> str:
    """What loading says, after a check that it is one line that names a file of ``folder``."""
    with pytest.raises(CheckpointError) as caught:
        load_codec(str(folder))
    message = str(caught.value)
    assert str(folder) in message
    assert "\n" not in message
    return message
