"""Licences of what a run loads, as far as its files or Auralign know them."""

from __future__ import annotations

from pathlib import Path

from rewards.endpoints.node import EndpointNode
from rl.arithmetic.shapes import policy_parameters, published_s2
from rl.doctor.check import Check, failed
from rl.doctor.rewards import Nodes
from rl.errors import AuralignError
from rl.export.card import FISH_NAME, licence_of
from rl.policy.configuration import DualARConfig
from rl.schema import RunConfig

FISH_TERMS = "read it: for research and non-commercial use, unless Fish Audio grants more"


def policy(folder: Path, config: DualARConfig) -> Check:
    """What the checkpoint's folder states; of a policy as large as the published S2, Fish Audio's where none
    is."""
    try:
        found = licence_of(folder)
    except AuralignError as error:
        return failed("licence of the policy", error, "read that file", "warning")
    published = policy_parameters(config) == policy_parameters(published_s2())
    if found.name == FISH_NAME or (found.tag == "unknown" and published):
        return Check("licence of the policy", FISH_NAME, "warning", FISH_TERMS)
    if found.tag == "unknown":
        return Check(
            "licence of the policy", "its folder states none", "warning", "ask its authors before use"
        )
    if found.tag == "other":
        return Check("licence of the policy", found.name, "warning", "read it before use")
    return Check("licence of the policy", found.tag)


def absent_policy(run: RunConfig) -> list[Check]:
    """Of a checkpoint that is still to be fetched, where it is to be S2's."""
    if run.model.prompt_format != "fish_s2":
        return []
    return [Check("licence of the policy", f"{FISH_NAME}, if it is to be S2", "warning", FISH_TERMS)]


def rewards(found: Nodes) -> list[Check]:
    """The models of the nodes; of endpoints, only that theirs aren't known here."""
    known, checks = dict[str, list[str]](), list[Check]()
    for name, node in found.built.items():
        if isinstance(node, EndpointNode):
            words = f"{node.model}: not known here"
            checks.append(
                Check(f"licence of {name}", words, "warning", "read the terms of that model and server")
            )
            continue
        for model in found.models[name] or ():
            if model.licence is None:
                words = f"{model.name}: not known here"
                checks.append(Check(f"licence of {name}", words, "warning", "read what its source says"))
            else:
                known.setdefault(model.licence, []).append(model.name)
    words = "; ".join(
        f"{licence}: {', '.join(dict.fromkeys(names))}" for licence, names in sorted(known.items())
    )
    return [*([Check("licences of rewards", words)] if words else []), *checks]
