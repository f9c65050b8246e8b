"""Adding a LoRA adapter into the files of its policy, one file at a time."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from rl.errors import CheckpointError, RunFolderError
from rl.export.card import write_card
from rl.policy.files import fingerprint, opened, weight_files
from rl.policy.loading import checkpoint_folder
from rl.run_folder import CONFIG_FILE as RUN_CONFIG
from rl.trainer.adapter import CONFIG_FILE, WEIGHTS_FILE, read_adapter_config, read_base
from rl.trainer.checkpoints import CHECKPOINTS, last_checkpoint

_PART = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


@dataclass(frozen=True)
class Update:
    """What LoRA adds to a weight: ``scaling * B A``, in float32."""

    a: Tensor
    b: Tensor
    scaling: float

    @property
    def shape(self) -> tuple[int, int]:
        return self.b.shape[0], self.a.shape[1]

    def added_to(self, weight: Tensor) -> Tensor:
        """In float32, rounded to the weight's own type once."""
        return (weight.float() + self.scaling * (self.b @ self.a)).to(weight.dtype)


@dataclass(frozen=True)
class Source:
    """An adapter, and the run that trained it, if it is one of this folder's."""

    adapter: Path
    run: Path | None


def find_source(path: Path) -> Source:
    """What ``path`` means: an adapter's folder, or a run's, whose last whole checkpoint it then is.

    Raises:
        CheckpointError, RunFolderError: it is neither, or the run saved no checkpoint.
    """
    if (path / CONFIG_FILE).is_file():
        run = path.resolve().parent.parent
        of_run = path.resolve().parent.name == CHECKPOINTS and (run / RUN_CONFIG).is_file()
        return Source(path, run if of_run else None)
    if not (path / RUN_CONFIG).is_file():
        raise CheckpointError(f"{path}: neither a run folder ({RUN_CONFIG}) nor an adapter's ({CONFIG_FILE})")
    last = last_checkpoint(path)
    if last is None:
        raise RunFolderError(f"{path}: the run saved no checkpoint; go on with rl-train --resume")
    return Source(last[0], path)


def export(path: Path, out: Path, base: str | None = None) -> Path:
    """Write the policy with the adapter of ``path`` (see `find_source`) merged in to ``out``; returns it.

    Everything else is as in the policy's folder, byte for byte: names, dtypes, shards, tokenizer, codec. A
    README.md (model card) and a NOTICE come with it. ``base``: the policy's folder, where it isn't any more
    where the adapter was trained.

    Raises:
        CheckpointError, RunFolderError: a file is missing or damaged, the adapter is of another policy, or
            ``out`` exists.
    """
    if out.exists():
        raise CheckpointError(f"--out {out}: exists; name a folder that doesn't")
    source = find_source(path)
    trained_on = read_base(source.adapter)
    folder = checkpoint_folder(base or _base_path(source.adapter))
    if trained_on is not None and trained_on.fingerprint != fingerprint(folder):
        raise CheckpointError(
            f"{source.adapter}: was trained on another policy than {folder} is; name that one's folder with "
            "--base"
        )
    updates = read_updates(source.adapter)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as unfinished:
        partial = Path(unfinished, out.name)
        partial.mkdir()
        files = weight_files(folder)
        for file in files:
            _write_merged(file, partial / file.name, updates)
        if updates:
            raise CheckpointError(f"{source.adapter}: adapts `{min(updates)}`, which {folder} doesn't hold")
        for file in folder.iterdir():
            if file.is_file() and file not in files and file.name not in ("README.md", "NOTICE"):
                shutil.copyfile(file, partial / file.name)
        write_card(partial, folder, source.adapter, source.run)
        partial.rename(out)
    return out


def read_updates(adapter: Path) -> dict[str, Update]:
    """What the adapter adds to each weight, under the policy's names.

    Raises:
        CheckpointError: a file is missing or damaged, or it isn't a plain LoRA on linear layers.
    """
    config, file = read_adapter_config(adapter), adapter / WEIGHTS_FILE
    with opened(file) as handle:
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    layers: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        part = _PART.fullmatch(name)
        if part is None or config.rank_pattern or config.alpha_pattern:
            raise CheckpointError(f"{file}: `{name}` isn't of a plain LoRA on linear layers")
        layers.setdefault(f"{part[1]}.weight", {})[part[2]] = tensor.float()
    scaling = config.lora_alpha / (config.r**0.5 if config.use_rslora else config.r)
    for name, parts in layers.items():
        if parts.keys() != {"A", "B"}:
            raise CheckpointError(f"{file}: of the adapter of `{name}` one half is missing")
    return {name: Update(parts["A"], parts["B"], scaling) for name, parts in layers.items()}


def _write_merged(source: Path, target: Path, updates: dict[str, Update]) -> None:
    """Copy a safetensors file with ``updates`` added; those used are taken out."""
    with opened(source) as handle:
        metadata = handle.metadata()
        tensors = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
    for name in tensors.keys() & updates.keys():
        update = updates.pop(name)
        if update.shape != tensors[name].shape:
            raise CheckpointError(f"{source}: the adapter of `{name}` is of another shape")
        tensors[name] = update.added_to(tensors[name])
    save_file(tensors, target, metadata)


def _base_path(adapter: Path) -> str:
    base = read_base(adapter)
    path = base.path if base else read_adapter_config(adapter).base_model_name_or_path
    if not path:
        raise CheckpointError(f"{adapter}: doesn't say which policy it adapts; name its folder with --base")
    return path
