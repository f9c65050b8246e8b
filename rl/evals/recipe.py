"""What measures: reward nodes, figures over their outputs, and nodes that compare two clips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rewards.catalogue import checked_options, show, suggest
from rewards.expression import Expression
from rewards.graph import RewardGraph, build_graph
from rl.config import find_config, read_yaml
from rl.errors import ConfigError
from rl.schema import RewardsConfig, option


@dataclass(frozen=True)
class Figure:
    """One line of the result: a mean over the items."""

    value: str = field(metadata={"help": "an expression over node outputs, as rewards.total"})
    better: str = option("higher", "which way is better", choices=("higher", "lower", "neither"))
    weigh: str = option(
        "items", "what an item counts: 1, its words, or its vocal tags", choices=("items", "words", "tags")
    )


@dataclass(frozen=True)
class Recipe:
    """``nodes`` as in a reward, ``figures`` over their outputs, ``pairs``: nodes that compare two clips.

    ``graph``: of the nodes. ``expressions``: those of the figures, checked.
    """

    file: str
    nodes: dict[str, Any]
    figures: dict[str, Figure]
    pairs: dict[str, Any]
    graph: RewardGraph
    expressions: dict[str, Expression]


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe in a file, or of a name in configs/evals; no model is loaded.

    ``overrides`` such as ``nodes.asr.model=large-v3`` go on top, null takes out. Raises `ConfigError`.
    """
    file = find_config(name_or_path, "evals")
    tree: dict[str, Any] = read_yaml(file)
    for text in overrides:
        _override(tree, text)
    for key in tree:
        if key not in ("nodes", "figures", "pairs"):
            raise ConfigError(f"{file}: there is no key {key}; {suggest(key, ('nodes', 'figures', 'pairs'))}")
    named = {name: value for name, value in _mapping(tree, "figures", file).items() if value is not None}
    if not named:
        raise ConfigError(f"{file}: figures must name at least one, such as WER: error")
    figures = {name: _figure(value, f"{file}: figures.{name}") for name, value in named.items()}
    nodes, pairs = _mapping(tree, "nodes", file), _mapping(tree, "pairs", file)
    graph = _graph(asdict(_rewards(nodes, figures)), file, "nodes", "figures")
    expressions = {
        name: graph.expression(figure.value, f"{file}: figures.{name}") for name, figure in figures.items()
    }
    return Recipe(str(file), nodes, figures, pairs, graph, expressions)


def rewards_of(recipe: Recipe) -> RewardsConfig:
    """The nodes as a reward, whose total, which nobody reads, uses what the figures use."""
    return _rewards(recipe.nodes, recipe.figures)


def build_pairs(recipe: Recipe) -> RewardGraph | None:
    """The graph of the nodes that compare two clips; None without any. Raises `ConfigError`."""
    names = [name for name, options in recipe.pairs.items() if options is not None]
    if not names:
        return None
    return _graph({"nodes": recipe.pairs, "total": " + ".join(names)}, recipe.file, "pairs", "pairs")


def _rewards(nodes: dict[str, Any], figures: Mapping[str, Figure]) -> RewardsConfig:
    total = " + ".join(f"({figure.value})" for figure in figures.values())
    return RewardsConfig(nodes=nodes, total=total, max_missing=1.0)


def _graph(rewards: Mapping[str, Any], file: Path | str, nodes: str, total: str) -> RewardGraph:
    """`build_graph`, whose errors name the recipe's own file and keys."""
    try:
        return build_graph(rewards)
    except ConfigError as error:
        message = str(error).replace("rewards.nodes", nodes).replace("rewards.total", total)
        raise ConfigError(f"{file}: {message}") from error


def _figure(value: Any, key: str) -> Figure:
    options = {"value": value} if isinstance(value, str) else value
    if not isinstance(options, Mapping):
        raise ConfigError(f"{key}: must be an expression, or a mapping with one as value, not {show(value)}")
    return Figure(**checked_options(Figure, options, key, "a figure"))


def _mapping(tree: Mapping[str, Any], key: str, file: Path) -> dict[str, Any]:
    value = tree.get(key) or {}
    if not isinstance(value, dict):
        raise ConfigError(f"{file}: {key} must be a mapping of names, not {show(value)}")
    return value


def _override(tree: dict[str, Any], text: str) -> None:
    dotted, equals, raw = text.partition("=")
    *path, last = dotted.strip().split(".")
    if not equals or not all((*path, last)):
        raise ConfigError(f"command line: eval.{text} is not key=value; e.g. eval.nodes.asr.model=large-v3")
    try:
        value = yaml.safe_load(raw)
    except yaml.YAMLError as error:
        problem = f"{raw!r} is no YAML value; put it in quotes"
        raise ConfigError(f"command line: eval.{dotted}: {problem}") from error
    place = tree
    for part in path:
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"command line: eval.{dotted}: {part} isn't a mapping in the recipe")
        place = inner
    place[last] = value
