"""What vLLM calls in each of its processes (entry-point group ``vllm.general_plugins``)."""

from __future__ import annotations

ARCHITECTURE = "AuralignDualAR"


def register() -> None:
    """Make the S2 layout's config and our model known to vLLM."""
    from vllm import ModelRegistry

    import rl.policy  # noqa: F401  (registers the configuration with transformers)

    ModelRegistry.register_model(ARCHITECTURE, "rollouts.vllm.model:DualARForVllm")
