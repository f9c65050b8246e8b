"""Reading S2's ``codec.pth``: tensors only, every one of them accounted for."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl.codec.s2 import S2Codec
from rl.codec.s2_config import CONFIG_FILE, read_config
from rl.errors import CheckpointError

WEIGHTS_FILE = "codec.pth"
_PREFIX = "generator."
_COMPUTED = ("causal_mask", "freqs_cis")
"""Tables that the reference keeps among its weights, and that are computed here."""


def load_s2_codec(path: str | Path, device: str | torch.device = "cpu") -> S2Codec:
    """The codec in a folder's ``codec.pth``, or in such a file, in float32 on ``device``.

    A ``codec_config.json`` beside it gives its shape; without one it is the published one's. On the device
    ``meta`` the tensors' names and shapes are read, and nothing else.

    Raises:
        CheckpointError: the file is missing or damaged, holds code, or its tensors don't fit.
    """
    given = Path(path)
    file = given / WEIGHTS_FILE if given.is_dir() else given
    state = _read(file, "meta" if torch.device(device).type == "meta" else "cpu")
    with torch.device("meta"):
        codec = S2Codec(read_config(file.parent / CONFIG_FILE))
    expected = codec.state_dict()
    for name, tensor in expected.items():
        if name not in state:
            raise CheckpointError(f"{file}: tensor `{name}` is missing; the file is incomplete")
        if state[name].shape != tensor.shape:
            raise CheckpointError(
                f"{file}: tensor `{name}` is {_shape(state[name])}, not {_shape(tensor)}; "
                f"{CONFIG_FILE} beside it must give the codec's shape"
            )
    unknown = [name for name in state if name not in expected and name.split(".")[-1] not in _COMPUTED]
    if unknown:
        raise CheckpointError(
            f"{file}: {len(unknown)} tensors are none of an S2 codec's, first `{unknown[0]}`"
        )
    codec.load_state_dict({name: state[name].float() for name in expected}, assign=True)
    codec.fold()
    return codec.to(device).eval().requires_grad_(False)


def _read(file: Path, place: str) -> dict[str, Tensor]:
    """The tensors by name, out of the training checkpoint's wrappings, if it has them."""
    try:
        loaded: Any = torch.load(file, map_location=place, weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{file}: holds more than tensors, which may run code, and isn't loaded ({_cause(error)})"
        ) from error
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(f"codec {file} can't be read ({detail}); model.codec must name one") from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(isinstance(value, Tensor) for value in loaded.values()):
        raise CheckpointError(f"{file}: must hold tensors by name")
    generator = {name[len(_PREFIX) :]: t for name, t in loaded.items() if name.startswith(_PREFIX)}
    return generator or loaded


def _cause(error: pickle.UnpicklingError) -> str:
    """The line of torch's long advice that says what was found."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "GLOBAL" in line or "Unsupported" in line), lines[0])


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))
