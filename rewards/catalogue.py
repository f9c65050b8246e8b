"""Find a node's class by its type, and build it from its options in the configuration."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import json
import math
import pkgutil
import typing
from collections.abc import Collection, Mapping
from dataclasses import MISSING, fields
from typing import Any

import rewards.nodes
from rewards.node import Node
from rl.errors import ConfigError

OF_ALL = ("monitor", "run")
"""Options that every node has and that the graph reads."""


def node_types() -> list[str]:
    """The types that ship with Auralign: the file names in `rewards.nodes`."""
    return sorted(module.name for module in pkgutil.iter_modules(rewards.nodes.__path__))


def node_class(type_name: str, key: str) -> type[Node]:
    """The node class of a shipped type, or of an importable module when ``type_name`` has a dot in it.

    Raises `ConfigError`, naming ``key``, where there is no such module or it doesn't define exactly one node.
    """
    if "." in type_name:
        module_name = type_name
        try:
            found = importlib.util.find_spec(module_name) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            raise ConfigError(
                f"{key}: no module {module_name} on the Python path; set PYTHONPATH to its folder"
            )
    else:
        if type_name not in node_types():
            raise ConfigError(f"{key}: there is no node type {type_name}; {suggest(type_name, node_types())}")
        module_name = f"rewards.nodes.{type_name}"
    module = importlib.import_module(module_name)
    classes = [
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, Node) and kind.__module__ == module_name
    ]
    if len(classes) != 1:
        raise ConfigError(
            f"{key}: {module_name} defines {len(classes)} nodes; keep exactly one Node class in a file"
        )
    return classes[0]


def build_node(options: Mapping[str, Any], key: str) -> Node:
    """The node that a mapping of ``type`` and options describes. Raises `ConfigError`, naming the key."""
    if not isinstance(options, Mapping):
        raise ConfigError(f"{key}: must be a mapping with a type and options, not {show(options)}")
    if "type" not in options:
        raise ConfigError(f"{key}.type: must be set; {suggest('', node_types())}")
    if not isinstance(options["type"], str):
        raise ConfigError(f"{key}.type: must be text, not {show(options['type'])}")
    kind = node_class(options["type"], f"{key}.type")
    own = {name: value for name, value in options.items() if name not in ("type", *OF_ALL)}
    values = checked_options(kind, own, key, f"a {options['type']} node", OF_ALL)
    if kind.requires is not None:
        module, extra = kind.requires
        if importlib.util.find_spec(module) is None:
            raise ConfigError(f"{key}.type: needs the package {module}: pip install 'auralign[{extra}]'")
    node = kind(**values)
    try:
        node.check()
    except ConfigError as error:
        raise ConfigError(f"{key}: {error}") from error
    return node


def checked_options(
    kind: type, options: Mapping[str, Any], key: str, what: str, further: Collection[str] = ()
) -> dict[str, Any]:
    """``options`` as the fields of the dataclass ``kind`` want them; ``what`` it is called in messages.

    ``further`` names are offered where a name is wrong. Raises `ConfigError`, naming the key.
    """
    hints = typing.get_type_hints(kind)
    known = {f.name: f for f in fields(kind) if f.init}
    values = {}
    for name, value in options.items():
        if name not in known:
            raise ConfigError(
                f"{key}.{name}: {what} has no such option; {suggest(str(name), [*known, *further])}"
            )
        values[name] = _checked(value, hints[name], known[name].metadata, f"{key}.{name}")
    for name, f in known.items():
        if name not in values and f.default is MISSING and f.default_factory is MISSING:
            raise ConfigError(f"{key}.{name}: must be set ({f.metadata['help']})")
    return values


def suggest(name: str, known: Collection[str]) -> str:
    """``did you mean x?``, or all that there is."""
    near = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are: {', '.join(known) or 'none'}"


def show(value: Any) -> str:
    """``value`` on one line, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


_WORDS = {str: "text", bool: "true or false", int: "a whole number", float: "a number"}
_BOUNDS = {
    "above": ("above", float.__gt__),
    "at_least": ("at least", float.__ge__),
    "at_most": ("at most", float.__le__),
}


def _checked(value: Any, hint: Any, metadata: Mapping[str, Any], key: str) -> Any:
    """``value`` as the hint wants it (``str``, ``bool``, ``int``, ``float``, or one of them or None)."""
    kinds = typing.get_args(hint) or (hint,)
    optional, kind = type(None) in kinds, kinds[0]
    if value is None and optional:
        return None
    if kind is float and type(value) is int:
        value = float(value)
    bounds = [(text, metadata[name], holds) for name, (text, holds) in _BOUNDS.items() if name in metadata]
    fits = type(value) is kind
    if fits and kind in (int, float):
        fits = math.isfinite(value) and all(holds(float(value), float(limit)) for _, limit, holds in bounds)
    if fits and "choices" in metadata:
        fits = value in metadata["choices"]
    if not fits:
        expected = (
            " or ".join(metadata["choices"])
            if "choices" in metadata
            else " ".join(
                [_WORDS[kind], " and ".join(f"{text} {limit:g}" for text, limit, _ in bounds)]
            ).strip()
        )
        raise ConfigError(f"{key}: must be {expected}{', or null' if optional else ''}, not {show(value)}")
    return value
