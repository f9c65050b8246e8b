"""Functions named in a configuration."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rl.errors import ConfigError


def import_function(path: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` names. Raises `ConfigError`."""
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ConfigError(f"path: {path} isn't package.module:function")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(f"path: no module {error.name} on the Python path; set PYTHONPATH") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"path: {module_name} has no function {name}")
    return function
