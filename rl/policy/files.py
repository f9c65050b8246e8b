"""A policy's folder, looked at before anything is loaded from it: what is amiss is named in one line."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedTokenizerBase

from rl.errors import CheckpointError
from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_IN_PROMPTS = ("<|im_start|>", "<|voice|>")


def read_config(folder: Path) -> DualARConfig:
    """The policy's config.

    Raises:
        CheckpointError: it can't be read, is of another architecture, or can't make a model.
    """
    tree = _read_json(folder / "config.json")
    kind = tree.get("model_type")
    if kind != DualARConfig.model_type:
        raise CheckpointError(
            f"{folder / 'config.json'}: model_type is {kind!r}; only `{DualARConfig.model_type}` is known"
        )
    try:
        config = DualARConfig.from_pretrained(folder)
        config.check()
    except CheckpointError as error:
        raise CheckpointError(f"{folder}/{error}") from error
    except (AttributeError, TypeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(
            f"{folder / 'config.json'}: makes no policy ({detail}); fetch it again"
        ) from error
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint, one or those that its index lists.

    Raises:
        CheckpointError: there are none, or one is missing.
    """
    index = folder / INDEX
    if index.is_file():
        places = _read_json(index).get("weight_map")
        if not isinstance(places, dict) or not places:
            raise CheckpointError(f"{index}: has no `weight_map`; the file is damaged")
        files = [folder / name for name in sorted(set(places.values()))]
        for file in files:
            if not file.is_file():
                raise CheckpointError(f"{file} is missing, though {INDEX} lists it; fetch it again")
        return files
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    for pickled in (*folder.glob("*.bin"), *folder.glob("*.pt"), *folder.glob("model*.pth")):
        raise CheckpointError(f"{pickled}: a pickle may run code; convert the weights to safetensors")
    raise CheckpointError(f"{folder}: holds neither {WEIGHTS} nor {INDEX}; fetch the whole checkpoint")


def check_tensors(folder: Path, config: DualARConfig) -> None:
    """Compare names and shapes of all tensors with what ``config`` needs; nothing is loaded.

    Raises:
        CheckpointError: a tensor is missing, of another shape, or none of the policy's.
    """
    with torch.device("meta"):
        model = DualARForCausalLM(config)
    missing = {name: list(parameter.shape) for name, parameter in model.named_parameters()}
    for file in weight_files(folder):
        with opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118
                if name not in missing:
                    raise CheckpointError(f"{file}: tensor `{name}` is none of the policy in config.json")
                shape, wanted = handle.get_slice(name).get_shape(), missing.pop(name)
                if shape != wanted:
                    raise CheckpointError(
                        f"{file}: tensor `{name}` is {_by(shape)}, but {_by(wanted)} by config.json"
                    )
    if missing:
        raise CheckpointError(
            f"{folder}: {len(missing)} tensors of the policy in config.json are missing, first "
            f"`{min(missing)}`"
        )


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: DualARConfig, where: Path) -> None:
    """Refuse a tokenizer whose special tokens aren't those of the prompts and of ``config``.

    Raises:
        CheckpointError: a token is missing, or has another id.
    """
    last = config.semantic_size - 1
    ids = {
        "<|im_end|>": config.eos_token_id,
        "<|semantic:0|>": config.semantic_start_token_id,
        f"<|semantic:{last}|>": config.semantic_end_token_id,
    }
    for token in (*_IN_PROMPTS, *ids):
        found = tokenizer.encode(token, add_special_tokens=False)
        if len(found) != 1:
            raise CheckpointError(f"{where}: its tokenizer lacks the special token {token}")
        if ids.get(token, found[0]) != found[0]:
            raise CheckpointError(
                f"{where}: {token} is {found[0]} in its tokenizer, but {ids[token]} in config.json"
            )


def fingerprint(folder: Path) -> str:
    """Tells a policy from its relatives, fine-tuned ones too: 32 hex digits.

    A hash over the name, dtype, shape and first row of each tensor: any training of a matrix changes its
    first row, and reading so little takes no time.
    """
    digest = hashlib.blake2b(digest_size=16)
    rows: dict[str, bytes] = {}
    for file in weight_files(folder):
        with opened(file) as handle:
            for name in handle.keys():  # noqa: SIM118
                part = handle.get_slice(name)
                row = part[:1].contiguous().view(torch.uint8).numpy().tobytes()
                rows[name] = f"{name} {part.get_dtype()} {part.get_shape()} ".encode() + row
    for name in sorted(rows):
        digest.update(rows[name])
    return digest.hexdigest()


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """A safetensors file; what is wrong with it becomes a `CheckpointError`."""
    try:
        with safe_open(file, "pt") as handle:
            yield handle
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{file}: can't be read ({error}); fetch it again") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        tree = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file}: can't be read as JSON ({error})") from error
    if not isinstance(tree, dict):
        raise CheckpointError(f"{file}: must be a JSON object")
    return tree


def _by(shape: list[int]) -> str:
    return " x ".join(map(str, shape))
