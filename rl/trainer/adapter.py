"""The LoRA adapter on the MLPs of both ARs, and the merged weights that an engine samples with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from peft import LoraConfig, PeftConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor

from rl.errors import CheckpointError, ConfigError
from rl.policy.files import fingerprint, opened
from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig as LoraSettings
from rl.trainer.sharding import whole

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
BASE_FILE = "auralign_base.json"
_STACKS = {
    "slow": r"text_model\.model",
    "fast": "audio_decoder",
    "both": r"(text_model\.model|audio_decoder)",
}


@dataclass(frozen=True)
class Base:
    """The policy that an adapter belongs to: where it was, and its `rl.policy.files.fingerprint`."""

    path: str
    fingerprint: str


def mlps(ars: str) -> str:
    """A regular expression for the names of the MLPs' projections in the ARs that ``lora.ars`` names."""
    return rf"{_STACKS[ars]}\.layers\.\d+\.feed_forward\.(w1|w2|w3)"


def add_adapter(model: DualARForCausalLM, settings: LoraSettings, seed: int) -> PeftModel:
    """``model`` with a float32 adapter on w1, w2 and w3 of the chosen ARs; everything else is frozen.

    Rank-stabilised (arXiv:2312.03732): the update is scaled by ``alpha / sqrt(r)``. A fresh one's B is zero,
    so that the policy is unchanged at first; its A is drawn from ``seed``, without touching the global
    generator. ``settings.adapter`` names one to go on from.

    Raises:
        CheckpointError, ConfigError: that one can't be used, or not with these settings.
    """
    if settings.adapter is not None:
        return open_adapter(model, Path(settings.adapter), settings)
    config = LoraConfig(
        r=settings.r,
        lora_alpha=cast(int, settings.alpha),
        lora_dropout=settings.dropout,
        use_rslora=True,
        target_modules=mlps(settings.ars),
        bias="none",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cast(PeftModel, get_peft_model(cast(torch.nn.Module, model), config))


def open_adapter(model: DualARForCausalLM, folder: Path, settings: LoraSettings | None = None) -> PeftModel:
    """``model`` with the adapter saved in ``folder``; with ``settings`` it can be trained, else it is frozen.

    Raises:
        CheckpointError: a file is missing or damaged, or the adapter is of another policy or kind.
        ConfigError: it isn't what ``settings`` say.
    """
    config, shapes = check_adapter(folder, _folder(model), settings)
    if settings is not None:
        config.lora_dropout = settings.dropout
    adapted = PeftModel.from_pretrained(
        cast(torch.nn.Module, model), str(folder), config=config, is_trainable=settings is not None
    )
    expected = {name: list(t.shape) for name, t in get_peft_model_state_dict(adapted).items()}
    for name in sorted(shapes.keys() ^ expected.keys()):
        where = "isn't in the file" if name in expected else "is none of a LoRA's on this policy"
        raise CheckpointError(f"{folder / WEIGHTS_FILE}: tensor `{name}` {where}")
    return adapted


def check_adapter(
    folder: Path, policy: Path, settings: LoraSettings | None = None
) -> tuple[LoraConfig, dict[str, list[int]]]:
    """How the adapter in ``folder`` was made, and its tensors' shapes by name; no weight is read.

    Raises:
        CheckpointError: a file is missing or damaged, it isn't plain LoRA, or not of the policy in
        ``policy``. ConfigError: it isn't what ``settings`` say.
    """
    config = read_adapter_config(folder)
    with opened(folder / WEIGHTS_FILE) as handle:
        shapes = {name: handle.get_slice(name).get_shape() for name in handle.keys()}  # noqa: SIM118
    for name in shapes:
        if not name.endswith((".lora_A.weight", ".lora_B.weight")):
            raise CheckpointError(f"{folder / WEIGHTS_FILE}: `{name}` isn't of a plain LoRA on linear layers")
    _check_base(policy, folder)
    if settings is not None:
        _check_settings(config, shapes, settings, folder)
    return config, shapes


def read_adapter_config(folder: Path) -> LoraConfig:
    """How the adapter in ``folder`` was made.

    Raises:
        CheckpointError: it holds none of peft's LoRA adapters, or one without safetensors.
    """
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(f"{folder} holds no {CONFIG_FILE}; name an adapter's folder, in peft's format")
    if not (folder / WEIGHTS_FILE).is_file():
        raise CheckpointError(f"{folder} holds no {WEIGHTS_FILE}; an adapter in a pickle isn't loaded")
    try:
        config = PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError, KeyError) as error:
        detail = " ".join(str(error).split())
        raise CheckpointError(f"{folder / CONFIG_FILE}: can't be read ({detail})") from error
    if not isinstance(config, LoraConfig):
        raise CheckpointError(f"{folder / CONFIG_FILE}: a {config.peft_type} adapter; only LoRA can be used")
    return config


def base_of(model: DualARForCausalLM) -> Base:
    """The identity of a policy that was loaded from a folder."""
    return Base(str(_folder(model)), fingerprint(_folder(model)))


def write_base(folder: Path, base: Base) -> None:
    """Keep beside an adapter to which policy it belongs."""
    (folder / BASE_FILE).write_text(json.dumps(asdict(base), indent=1) + "\n", encoding="utf-8")


def read_base(folder: Path) -> Base | None:
    """What `write_base` wrote; None for an adapter that wasn't trained here.

    Raises:
        CheckpointError: the file is damaged.
    """
    file = folder / BASE_FILE
    if not file.is_file():
        return None
    try:
        return Base(**json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise CheckpointError(f"{file}: damaged ({error})") from error


def merged_weights(model: PeftModel) -> dict[str, Tensor]:
    """What `merging` gives, all of it."""
    return dict(merging(model))


@torch.no_grad()
def merging(model: PeftModel) -> Iterator[tuple[str, Tensor]]:
    """``W + scaling * B A`` of every adapted layer, one by one, under the policy's own names.

    Out of place, added in float32 and cast once: the frozen weights don't drift, as they would when a
    bfloat16 base is merged and unmerged at each step. Where the frozen weights are sharded
    (`rl.trainer.sharding`), all learners must go through it together.
    """
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLinear):
            base = whole(cast(Tensor, layer.get_base_layer().weight))
            update = layer.get_delta_weight("default").float()
            yield f"{name}.weight", (base.float() + update).to(base.dtype)


def _folder(model: DualARForCausalLM) -> Path:
    """Where the policy was loaded from."""
    return Path(cast(str, model.name_or_path))


def _check_base(policy: Path, folder: Path) -> None:
    base = read_base(folder)
    if base is not None and base.fingerprint != fingerprint(policy):
        raise CheckpointError(
            f"{folder}: this adapter was trained on another policy, {base.path}, than {policy}; name that one"
        )


def _check_settings(
    config: LoraConfig, shapes: dict[str, list[int]], settings: LoraSettings, folder: Path
) -> None:
    """Refuse settings that would be kept with the run, but aren't those of the adapter."""
    slow = any(name.startswith("base_model.model.text_model.") for name in shapes)
    fast = any(name.startswith("base_model.model.audio_decoder.") for name in shapes)
    ars = "both" if slow and fast else "slow" if slow else "fast"
    alpha = config.lora_alpha * (1.0 if config.use_rslora else config.r**-0.5)
    for key, ours, theirs in (
        ("r", f"{settings.r}", f"{config.r}"),
        ("alpha", f"{settings.alpha:g}", f"{alpha:g}"),
        ("ars", settings.ars, ars),
    ):
        if ours != theirs:
            raise ConfigError(
                f"lora.{key}: {ours}, but the adapter {folder} has {theirs}; set lora.{key}={theirs}"
            )
