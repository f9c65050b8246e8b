"""Models that share training share blind spots: captioners, judges and policies of one family."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence

from rewards.node import Node
from rewards.nodes.caption_endpoint import CaptionEndpoint
from rewards.nodes.judge_endpoint import JudgeEndpoint
from rewards.nodes.pair_endpoint import PairEndpoint

log = logging.getLogger(__name__)

_FAMILIES = {
    "claude": "claude",
    "deepseek": "deepseek",
    "gemini": "gemini",
    "gemma": "gemini",
    "glm": "glm",
    "gpt": "gpt",
    "kimi": "kimi",
    "llama": "llama",
    "magistral": "mistral",
    "minicpm": "minicpm",
    "ministral": "mistral",
    "mistral": "mistral",
    "mixtral": "mistral",
    "phi": "phi",
    "qwen": "qwen",
    "qwq": "qwen",
    "step": "step",
    "voxtral": "mistral",
}
"""Family by a word of a model's name."""


def families(name: str) -> set[str]:
    """The families that a model's name speaks of: two for a distillation, none where it says nothing."""
    return {_FAMILIES[word] for word in re.findall("[a-z]+", name.lower()) if word in _FAMILIES}


def warn_of_shared_bias(nodes: Mapping[str, Node], policy: Sequence[str]) -> None:
    """Log each warning of `shared_bias`."""
    for warning in shared_bias(nodes, policy):
        log.warning("rewards: %s", warning)


def shared_bias(nodes: Mapping[str, Node], policy: Sequence[str]) -> list[str]:
    """A warning for each captioner or judge of the policy's family, and each such pair of one family.

    ``policy`` is what is known of the policy by name: its path, its kind. Only names are compared, so that
    an alias goes unnoticed.
    """
    own = set().union(*map(families, policy))
    captioners = {name: node.model for name, node in nodes.items() if isinstance(node, CaptionEndpoint)}
    judges = {name: node.model for name, node in nodes.items() if isinstance(node, JudgeEndpoint)}
    comparers = {name: node.model for name, node in nodes.items() if isinstance(node, PairEndpoint)}
    warnings = [
        f"{name} ({model}) and the policy are both of the family {family}: it may favour the policy's own "
        "faults; use a model of another family"
        for name, model in {**captioners, **judges, **comparers}.items()
        for family in sorted(families(model) & own)
    ]
    warnings += [
        f"the captioner {captioner} and the judge {judge} are both of the family {family}: what one misses, "
        "the other may miss too; use models of different families"
        for captioner, heard in captioners.items()
        for judge, graded in judges.items()
        for family in sorted(families(heard) & families(graded))
    ]
    return warnings
