"""The frozen weights in shares, one for each learner (FSDP2); a layer is whole only while it computes."""

from __future__ import annotations

from typing import cast

from peft import PeftModel
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from rl.policy.modeling import DualARForCausalLM


def shard_frozen(model: PeftModel) -> None:
    """Keep only this learner's share of the layers of both ARs, in place; all learners call it.

    The adapter stays whole everywhere, as do embeddings and heads: gradients, optimiser and checkpoints are
    those of learners that hold everything. The process group must be there (`rl.trainer.learners.joined`).
    """
    policy = cast(DualARForCausalLM, model.get_base_model())
    for stack in (policy.text_model.model, policy.audio_decoder):
        for layer in stack.layers:
            fully_shard(layer, ignored_params=_trained(layer), reshard_after_forward=True)
        rest = set(stack.parameters()) - set(stack.layers.parameters())
        fully_shard(stack, ignored_params=rest | _trained(stack), reshard_after_forward=True)
        register_fsdp_forward_method(stack, "run")  # the layers fetch ahead of each other within it


def whole(weight: Tensor) -> Tensor:
    """``weight``, gathered from all learners where it is sharded."""
    return weight.full_tensor() if isinstance(weight, DTensor) else weight


def _trained(module: nn.Module) -> set[nn.Parameter]:
    return {parameter for parameter in module.parameters() if parameter.requires_grad}
