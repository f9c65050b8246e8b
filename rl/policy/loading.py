"""Opening a policy checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.errors import CheckpointError
from rl.policy.modeling import DualARForCausalLM

EMBEDDED = Path(__file__).parent.parent / "assets" / "tiny"


def checkpoint_folder(path: str) -> Path:
    """The directory that ``path`` means: ``tiny`` is the embedded voice.

    Raises:
        CheckpointError: no such directory, or no checkpoint in it.
    """
    folder = EMBEDDED / "policy" if path == "tiny" else Path(path)
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"model.path: {folder} holds no config.json; name a checkpoint directory")
    return folder


def load_policy(
    path: str, dtype: torch.dtype = torch.float32
) -> tuple[DualARForCausalLM, PreTrainedTokenizerBase]:
    """The policy and tokenizer in a directory of the published S2 layout (see :func:`checkpoint_folder`).

    Raises:
        CheckpointError: no such directory, or weights that don't fit the config.
    """
    folder = checkpoint_folder(path)
    try:
        loaded: Any = DualARForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True, local_files_only=True
        )
    except (OSError, RuntimeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(f"model.path: {folder} can't be loaded ({detail})") from error
    model, report = loaded
    wrong = sorted(report["missing_keys"]) + sorted(report["unexpected_keys"])
    if wrong:
        raise CheckpointError(
            f"model.path: {folder}: {len(wrong)} tensors don't fit config.json, first `{wrong[0]}`"
        )
    return model.eval(), load_tokenizer(folder)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint directory.

    Raises:
        CheckpointError: it has none that can be read.
    """
    try:
        return AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, RuntimeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(f"model.path: {folder}: its tokenizer can't be loaded ({detail})") from error
