"""The LoRA adapter on the MLPs of both ARs, and the merged weights that an engine samples with."""

from __future__ import annotations

from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear as LoraLinear
from torch import Tensor

from rl.policy.modeling import DualARForCausalLM
from rl.schema import LoraConfig as LoraSettings

MLPS = r"(text_model\.model|audio_decoder)\.layers\.\d+\.feed_forward\.(w1|w2|w3)"


def add_adapter(model: DualARForCausalLM, settings: LoraSettings, seed: int) -> PeftModel:
    """``model`` with a fresh float32 adapter on w1, w2 and w3 of both ARs; everything else is frozen.

    Rank-stabilised (arXiv:2312.03732): the update is scaled by ``alpha / sqrt(r)``. B starts at zero, so
    the policy is unchanged at first; A is drawn from ``seed``, without touching the global generator.
    """
    config = LoraConfig(
        r=settings.r,
        lora_alpha=cast(int, settings.alpha),
        lora_dropout=settings.dropout,
        use_rslora=True,
        target_modules=MLPS,
        bias="none",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return cast(PeftModel, get_peft_model(cast(torch.nn.Module, model), config))


@torch.no_grad()
def merged_weights(model: PeftModel) -> dict[str, Tensor]:
    """``W + scaling * B A`` of every adapted layer, under the policy's own names.

    Out of place, added in float32 and cast once: the frozen weights don't drift, as they would when a
    bfloat16 base is merged and unmerged at each step.
    """
    merged = {}
    for name, layer in model.get_base_model().named_modules():
        if isinstance(layer, LoraLinear):
            base = cast(Tensor, layer.get_base_layer().weight)
            update = layer.get_delta_weight("default").float()
            merged[f"{name}.weight"] = (base.float() + update).to(base.dtype)
    return merged
