"""The ``run:`` block of a node: where its batches run, how large they are, and how long they may take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewards.catalogue import checked_options, show
from rl.errors import ConfigError
from rl.schema import option

_NEEDS = {
    "workers": ("thread", "ray"),
    "max_seconds": ("thread", "ray"),
    "num_cpus": ("thread", "ray"),
    "num_gpus": ("ray",),
}
"""Options that mean something only in some places."""


@dataclass(frozen=True)
class RunOptions:
    """Where one node runs. None of it changes a value, but for the last digits of batched arithmetic."""

    where: str = option(
        "inline",
        "inline: in the caller's thread; thread: beside it; ray: in actors, anywhere on the cluster",
        choices=("inline", "thread", "ray"),
    )
    workers: int = option(1, "threads or actors, each with models of its own", at_least=1)
    batch_size: int = option(
        32, "clips given to the node at once: cut from the order of submission, across prompts", at_least=1
    )
    max_seconds: float | None = option(
        None, "a batch that takes longer is missing, and its worker is replaced; null: no deadline", above=0
    )
    num_cpus: float | None = option(
        None,
        "cores for each worker: torch's threads, which Ray also reserves; null: torch's default, on Ray 1",
        above=0,
    )
    num_gpus: float = option(0.0, "GPUs that Ray reserves for each actor, in parts too", at_least=0)


def run_options(block: Any, key: str) -> RunOptions:
    """The checked options of a ``run:`` block; None means the defaults. Raises `ConfigError`."""
    if block is None:
        return RunOptions()
    if not isinstance(block, Mapping):
        raise ConfigError(f"{key}: must be a mapping, such as {{where: thread}}, not {show(block)}")
    options = RunOptions(**checked_options(RunOptions, block, key, "a run block"))
    for name, places in _NEEDS.items():
        if name in block and options.where not in places:
            needed = " or ".join(places)
            raise ConfigError(
                f"{key}.{name}: has no meaning with where: {options.where}; it needs where: {needed}"
            )
    return options
