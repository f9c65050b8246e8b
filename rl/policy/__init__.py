"""The Dual-AR policy as transformers classes, registered with the Auto classes."""

from transformers import AutoConfig, AutoModelForCausalLM

from rl.policy.configuration import DualARConfig
from rl.policy.modeling import DualARForCausalLM

AutoConfig.register(DualARConfig.model_type, DualARConfig)
AutoModelForCausalLM.register(DualARConfig, DualARForCausalLM)

__all__ = ["DualARConfig", "DualARForCausalLM"]
