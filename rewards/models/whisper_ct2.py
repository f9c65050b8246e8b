"""Whisper weights in CTranslate2's binary layout, loaded into openai-whisper's own model class.

The layout (``model.bin``, version 6, little-endian): version, specification name, revision; then each
variable as name, rank, dimensions, type id, byte count and bytes; then aliases of variables. A string is a
16-bit length, that many bytes, the last of them NUL.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import torch
from whisper.model import ModelDimensions, Whisper

from rl.errors import CheckpointError

LAYOUT_VERSION = 6
_DTYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


def load_whisper_ct2(folder: str | Path) -> Whisper:
    """A float32 CPU model, in eval mode, from a folder with ``model.bin`` and ``config.json``.

    Only unquantised weights are read. Raises `CheckpointError` where the files are missing, cut short, or
    not a Whisper that openai-whisper's class can hold exactly.
    """
    folder = Path(folder)
    try:
        variables = read_variables(folder / "model.bin")
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise CheckpointError(
            f"{error.filename}: can't be read ({error.strerror}); reinstall the weights"
        ) from error
    try:
        model = Whisper(_dimensions(variables))
        state = _state_dict(variables, model.dims)
        heads = torch.zeros(model.dims.n_text_layer, model.dims.n_text_head, dtype=torch.bool)
        heads[tuple(torch.tensor(config["alignment_heads"]).T)] = True
        model.load_state_dict(state, strict=True)
    except (KeyError, RuntimeError, IndexError) as error:
        problem = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{folder / 'model.bin'}: not an unquantised Whisper in this layout ({problem})"
        ) from error
    model.register_buffer("alignment_heads", heads.to_sparse(), persistent=False)
    return model.eval()


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Every variable of a version-6 file by its name. Raises `CheckpointError` or `OSError`."""
    data = path.read_bytes()
    offset = 0

    def number(kind: str) -> int:
        nonlocal offset
        (value,) = struct.unpack_from(f"<{kind}", data, offset)
        offset += struct.calcsize(f"<{kind}")
        return int(value)

    def string() -> str:
        nonlocal offset
        length = number("H")
        text = data[offset : offset + length - 1].decode()
        offset += length
        return text

    try:
        version = number("I")
        if version != LAYOUT_VERSION:
            raise CheckpointError(
                f"{path}: layout version {version}, only version {LAYOUT_VERSION} is read; convert it again"
            )
        string(), number("I")
        variables = {}
        for _ in range(number("I")):
            name = string()
            shape = tuple(number("I") for _ in range(number("B")))
            dtype, size = _DTYPES[number("B")], number("I")
            variables[name] = np.frombuffer(data[offset : offset + size], dtype).reshape(shape)
            offset += size
        return variables
    except (struct.error, KeyError, ValueError) as error:
        raise CheckpointError(f"{path}: cut short or no such model ({error}); fetch it again") from error


def _dimensions(variables: dict[str, np.ndarray]) -> ModelDimensions:
    audio_ctx, audio_state = variables["encoder/position_encodings/encodings"].shape
    text_ctx, text_state = variables["decoder/position_encodings/encodings"].shape
    names = variables.keys()
    return ModelDimensions(
        n_mels=variables["encoder/conv1/weight"].shape[1],
        n_audio_ctx=audio_ctx,
        n_audio_state=audio_state,
        n_audio_head=int(variables["encoder/num_heads"]),
        n_audio_layer=len(
            {name.split("/")[1] for name in names if name.startswith("encoder/layer_")} - {"layer_norm"}
        ),
        n_vocab=variables["decoder/embeddings/weight"].shape[0],
        n_text_ctx=text_ctx,
        n_text_state=text_state,
        n_text_head=int(variables["decoder/num_heads"]),
        n_text_layer=len(
            {name.split("/")[1] for name in names if name.startswith("decoder/layer_")} - {"layer_norm"}
        ),
    )


def _state_dict(variables: dict[str, np.ndarray], dims: ModelDimensions) -> dict[str, torch.Tensor]:
    def tensor(name: str) -> torch.Tensor:
        if variables[name].dtype not in (np.float16, np.float32):
            raise KeyError(f"{name} is quantised")
        return torch.from_numpy(variables[name].astype(np.float32))

    state = {
        "encoder.positional_embedding": tensor("encoder/position_encodings/encodings"),
        "decoder.positional_embedding": tensor("decoder/position_encodings/encodings"),
        "decoder.token_embedding.weight": tensor("decoder/embeddings/weight"),
    }

    def copy(ours: str, theirs: str, weight: str = "weight", bias: str = "bias") -> None:
        state[f"{ours}.weight"] = tensor(f"{theirs}/{weight}")
        state[f"{ours}.bias"] = tensor(f"{theirs}/{bias}")

    def copy_norm(ours: str, theirs: str) -> None:
        copy(ours, theirs, "gamma", "beta")

    def split(ours: str, theirs: str, parts: tuple[str, ...]) -> None:
        """One fused projection into ``parts``; Whisper's keys have no bias, so theirs must be zero."""
        weights = tensor(f"{theirs}/weight").chunk(len(parts))
        biases = tensor(f"{theirs}/bias").chunk(len(parts))
        for part, weight, bias in zip(parts, weights, biases, strict=True):
            state[f"{ours}.{part}.weight"] = weight.clone()
            if part != "key":
                state[f"{ours}.{part}.bias"] = bias.clone()
            elif bias.any():
                raise KeyError(f"{theirs}/bias of the keys isn't zero")

    copy("encoder.conv1", "encoder/conv1")
    copy("encoder.conv2", "encoder/conv2")
    copy_norm("encoder.ln_post", "encoder/layer_norm")
    copy_norm("decoder.ln", "decoder/layer_norm")
    for side, layers in (("encoder", dims.n_audio_layer), ("decoder", dims.n_text_layer)):
        for i in range(layers):
            ours, theirs = f"{side}.blocks.{i}", f"{side}/layer_{i}"
            split(f"{ours}.attn", f"{theirs}/self_attention/linear_0", ("query", "key", "value"))
            copy(f"{ours}.attn.out", f"{theirs}/self_attention/linear_1")
            copy_norm(f"{ours}.attn_ln", f"{theirs}/self_attention/layer_norm")
            copy(f"{ours}.mlp.0", f"{theirs}/ffn/linear_0")
            copy(f"{ours}.mlp.2", f"{theirs}/ffn/linear_1")
            copy_norm(f"{ours}.mlp_ln", f"{theirs}/ffn/layer_norm")
            if side == "decoder":
                split(f"{ours}.cross_attn", f"{theirs}/attention/linear_1", ("key", "value"))
                copy(f"{ours}.cross_attn.query", f"{theirs}/attention/linear_0")
                copy(f"{ours}.cross_attn.out", f"{theirs}/attention/linear_2")
                copy_norm(f"{ours}.cross_attn_ln", f"{theirs}/attention/layer_norm")
    return state
