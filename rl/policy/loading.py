"""Opening a policy checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.errors import CheckpointError
from rl.policy.files import check_tensors, check_tokenizer, read_config
from rl.policy.modeling import DualARForCausalLM

EMBEDDED = Path(__file__).parent.parent / "assets" / "tiny"


def checkpoint_folder(path: str) -> Path:
    """The directory that ``path`` means, its files checked: ``tiny`` is the embedded voice.

    Raises:
        CheckpointError: no such directory, no checkpoint in it, or one that is incomplete or doesn't fit its
            config.
    """
    folder = EMBEDDED / "policy" if path == "tiny" else Path(path)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"model.path: {folder} holds no config.json; name a checkpoint directory")
    check_tensors(folder, read_config(folder))
    return folder


def load_policy(
    path: str, dtype: torch.dtype | str = torch.float32, device: str | torch.device = "cpu"
) -> tuple[DualARForCausalLM, PreTrainedTokenizerBase]:
    """The policy and tokenizer in a directory of the published S2 layout (see :func:`checkpoint_folder`).

    ``dtype``: ``auto`` is that of the files. The tensors go from the files to ``device`` one by one.

    Raises:
        CheckpointError: no such directory, weights that don't fit the config, or no fitting tokenizer.
    """
    folder = checkpoint_folder(path)
    place: Any = {} if torch.device(device).type == "cpu" else {"device_map": {"": device}}
    try:
        model = DualARForCausalLM.from_pretrained(
            folder, dtype=dtype, local_files_only=True, use_safetensors=True, **place
        )
    except (OSError, RuntimeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(f"model.path: {folder} can't be loaded ({detail})") from error
    return model.eval(), load_tokenizer(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint directory.

    Raises:
        CheckpointError: it has none that can be read, or one without the policy's special tokens.
    """
    if not (folder / "tokenizer.json").is_file():
        raise CheckpointError(f"model.path: {folder} holds no tokenizer.json; fetch the whole checkpoint")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(f"model.path: {folder}: its tokenizer can't be loaded ({detail})") from error
    check_tokenizer(tokenizer, read_config(folder), folder)
    return tokenizer
