"""Read, check, save and name run configurations.

A run is described by one YAML file, an optional reward recipe, and overrides from the command line, in this
order of growing precedence: schema defaults, recipe, file, overrides. Whatever is wrong becomes a
`ConfigError` of one line that names the key, where it was set, and the remedy.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import asdict, dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rl.errors import ConfigError
from rl.schema import RewardsConfig, RunConfig

COMMAND_LINE = "command line"


@dataclass(frozen=True)
class Key:
    """One settable key of the schema. ``default`` is ``omegaconf.MISSING`` where the user must choose."""

    name: str
    kind: Any
    default: Any
    help: str
    limits: Mapping[str, Any]

    @property
    def optional(self) -> bool:
        return type(None) in typing.get_args(self.kind)

    @property
    def base_kind(self) -> Any:
        """The type without ``| None``."""
        if not self.optional:
            return self.kind
        return next(kind for kind in typing.get_args(self.kind) if kind is not type(None))

    @property
    def expects(self) -> str:
        """The allowed values in words."""
        if "choices" in self.limits:
            words = " or ".join(self.limits["choices"])
        else:
            words = _KINDS[self.base_kind][1]
            bounds = [f"{text} {self.limits[name]:g}" for name, text in _BOUNDS if name in self.limits]
            words = " ".join([words, *bounds])
        return f"{words}, or null" if self.optional else words


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _has_text_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _has_text_keys(inner) for key, inner in value.items())
    return all(map(_has_text_keys, value)) if isinstance(value, list) else True


_KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda v: isinstance(v, str), "text"),
    bool: (lambda v: isinstance(v, bool), "true or false"),
    int: (_is_int, "a whole number"),
    float: (lambda v: _is_int(v) or (isinstance(v, float) and math.isfinite(v)), "a number"),
    list[str]: (lambda v: isinstance(v, list) and all(isinstance(x, str) for x in v), "a list of texts"),
    dict[str, Any]: (lambda v: isinstance(v, dict) and _has_text_keys(v), "a mapping with text keys"),
}
_BOUNDS = (("above", "above"), ("at_least", "from"), ("at_most", "up to"))


@cache
def schema_keys() -> dict[str, Key]:
    """Every settable key by its dotted name, in the schema's order."""
    return {key.name: key for key in _walk_schema(RunConfig, "")}


@cache
def _sections() -> frozenset[str]:
    return frozenset(name.rpartition(".")[0] for name in schema_keys()) - {""}


def _walk_schema(kind: type, prefix: str) -> Iterator[Key]:
    hints = typing.get_type_hints(kind)
    for f in fields(kind):
        if is_dataclass(hints[f.name]):
            yield from _walk_schema(hints[f.name], f"{prefix}{f.name}.")
            continue
        default = f.default if f.default_factory is NO_DEFAULT else f.default_factory()
        limits = {name: value for name, value in f.metadata.items() if name != "help"}
        yield Key(prefix + f.name, hints[f.name], default, f.metadata["help"], limits)


def shipped_configs() -> Path:
    """The folder of the configurations that come with Auralign (in a wheel, or in a checkout)."""
    here = Path(__file__).resolve().parent
    packaged = here / "_configs"
    return packaged if packaged.is_dir() else here.parent / "configs"


def find_config(name: str, folder: str = "", beside: Path | None = None) -> Path:
    """The file that ``name`` means; the ending ``.yaml`` may be left out.

    Looked up in ``beside`` (if given), in the current folder, then in ``folder`` of the shipped files. Raises
    `ConfigError` where there is none.
    """
    shipped = shipped_configs() / folder
    for base in (beside or Path(), Path(), shipped):
        for candidate in (base / name, base / f"{name}.yaml"):
            if candidate.is_file():
                return candidate
    known = sorted(path.name for path in shipped.glob("*.yaml"))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"shipped with Auralign: {', '.join(known) or 'none'}"
    what = f"{name}: no such {folder or 'configuration'} file"
    raise ConfigError(f"{what} here or among the shipped ones; {hint}")


def load_config(name_or_path: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The checked configuration in a file, with ``overrides`` such as ``trainer.steps=20`` on top.

    A bare name is looked up in the current folder, then among the shipped configurations. Values of
    overrides are YAML. Raises `ConfigError`.
    """
    file = find_config(str(name_or_path))
    sources = [(str(file), read_yaml(file))]
    sources += [(COMMAND_LINE, _parse_override(text)) for text in overrides]
    return _build(_with_recipe(sources), file)


def load_rewards(name_or_path: str) -> RewardsConfig:
    """The checked reward recipe in a file, or of a shipped name. Raises `ConfigError`."""
    file = find_config(name_or_path, "rewards")
    recipe = {"rewards": read_yaml(file), "trainer": {"steps": 1}}  # steps has no default
    return _build([(str(file), recipe)], file).rewards


def save_resolved(config: RunConfig, path: str | Path) -> None:
    """Write ``config`` with every key, in a form that `load_config` reads back as an equal object."""
    Path(path).write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(config))), encoding="utf-8")


def config_hash(config: RunConfig) -> str:
    """Twelve hex digits that name what a run computes, not where: ``name``, ``output_dir``, ``cluster``."""
    where = ("name", "output_dir", "cluster")
    content = {key: value for key, value in asdict(config).items() if key not in where}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file, without tags. Raises `ConfigError`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read as UTF-8 text ({error})") from error
    tree = _parse_yaml(text, str(path), OmegaConf.create) if text.strip() else {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path}: must be a mapping of keys to values")
    return typing.cast(dict[str, Any], tree)


def _parse_override(text: str) -> dict[str, Any]:
    """The tree that ``a.b=value`` stands for. ``rewards=NAME`` is short for ``rewards.recipe=NAME``."""
    dotted, equals, raw = text.partition("=")
    parts = dotted.strip().split(".")
    if not equals or not all(parts):
        raise ConfigError(f"{COMMAND_LINE}: {_show(text)} is not key=value; e.g. trainer.steps=20")
    where = f"{COMMAND_LINE}: {dotted}"
    value = _parse_yaml(raw, where, lambda raw: OmegaConf.from_dotlist([f"value={raw}"]))["value"]
    key = schema_keys().get(".".join(parts))
    if key is not None and key.base_kind is str and isinstance(value, bool | int | float):
        value = raw.strip()  # name=007 means these three characters
    if parts == ["rewards"] and isinstance(value, str):
        parts = ["rewards", "recipe"]  # rewards=NAME swaps the whole recipe
    for part in reversed(parts):
        value = {part: value}
    return typing.cast(dict[str, Any], value)


def _parse_yaml(text: str, where: str, read: Callable[[str], Any]) -> Any:
    """What OmegaConf's ``read`` makes of ``text``: it refuses repeated keys, and 1e-4 is a number to it."""
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag is not None:
                line = event.start_mark.line + 1 if event.start_mark else 1
                raise ConfigError(f"{where}: line {line}: remove the YAML tag {event.tag}; tags may run code")
        return OmegaConf.to_container(read(text), resolve=False)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line_note = f" on line {mark.line + 1}" if mark else ""
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise ConfigError(f"{where}: not valid YAML{line_note}: {problem}; put text in quotes") from error
    except OmegaConfBaseException as error:
        raise ConfigError(f"{where}: {_first_line(error)}") from error


def _with_recipe(sources: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The sources with the recipe that the last of them names put in front, and its name taken out.

    What is left stands on its own: a saved configuration doesn't change when a recipe does.
    """
    recipe, named_in = None, COMMAND_LINE
    for where, tree in sources:
        rewards = tree.get("rewards")
        if isinstance(rewards, dict) and "recipe" in rewards:
            recipe, named_in = rewards.pop("recipe"), where
            _check(schema_keys()["rewards.recipe"], recipe, where)
    if recipe is None:
        return sources
    file = find_config(recipe, "rewards", None if named_in == COMMAND_LINE else Path(named_in).parent)
    rewards = read_yaml(file)
    if "recipe" in rewards:
        raise ConfigError(f"{file}: a recipe can't start from another; remove its key recipe")
    return [(str(file), {"rewards": rewards}), *sources]


def _build(sources: list[tuple[str, dict[str, Any]]], file: Path) -> RunConfig:
    config = OmegaConf.structured(RunConfig)
    interpolated: dict[str, str] = {}
    for where, tree in sources:
        for name, value in _leaves(tree, "", where):
            if isinstance(value, str) and "${" in value:
                interpolated[name] = where
            else:
                _check(schema_keys()[name], value, where)
            try:
                OmegaConf.update(config, name, value, merge=True)
            except OmegaConfBaseException as error:
                raise ConfigError(f"{where}: {name}: {_first_line(error)}") from error
    try:
        for name, where in interpolated.items():
            _check(schema_keys()[name], OmegaConf.select(config, name), where)
        missing = sorted(OmegaConf.missing_keys(config))
        if missing:
            raise ConfigError(f"{file}: {', '.join(missing)} must be set, there or on the command line")
        return typing.cast(RunConfig, OmegaConf.to_object(config))
    except OmegaConfBaseException as error:
        where = interpolated.get(error.full_key or "", str(file))
        raise ConfigError(f"{where}: {error.full_key}: {_first_line(error)}") from error


def _leaves(tree: Mapping[Any, Any], prefix: str, where: str) -> Iterator[tuple[str, Any]]:
    """Dotted name and value of every schema key in ``tree``; a section that is empty or null has none."""
    for part, value in tree.items():
        name = f"{prefix}{part}"
        if name in schema_keys():
            yield name, value
        elif name not in _sections():
            near = _nearest(name)
            hint = f"did you mean {near}?" if near else "--help-config lists the keys"
            raise ConfigError(f"{where}: there is no key {name}; {hint}")
        elif isinstance(value, Mapping):
            yield from _leaves(value, f"{name}.", where)
        elif value is not None:
            raise ConfigError(f"{where}: {name} is a section, not {_show(value)}; set one of its keys")


def _nearest(name: str) -> str | None:
    """The key or section most like ``name``; one in the wrong section is found by its last part."""
    known = [*schema_keys(), *sorted(_sections())]
    last = name.rpartition(".")[2]
    same = [key for key in known if key.rpartition(".")[2] == last]
    near = difflib.get_close_matches(name, same or known, n=1, cutoff=0 if same else 0.6)
    return near[0] if near else None


def _check(key: Key, value: Any, where: str) -> None:
    if value is None and key.optional:
        return
    limits = key.limits
    fits = _KINDS[key.base_kind][0](value) and not (
        ("choices" in limits and value not in limits["choices"])
        or ("above" in limits and not value > limits["above"])
        or ("at_least" in limits and not value >= limits["at_least"])
        or ("at_most" in limits and not value <= limits["at_most"])
    )
    if not fits:
        raise ConfigError(f"{where}: {key.name} must be {key.expects}, not {_show(value)}")


def _show(value: Any) -> str:
    """``value`` as YAML would have it, on one line, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
