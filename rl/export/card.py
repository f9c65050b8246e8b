"""What goes with exported weights: a model card, the licence's notices, and the run's configuration."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from rl.config import load_config
from rl.errors import CheckpointError
from rl.policy.loading import EMBEDDED
from rl.run_folder import CONFIG_FILE, read_evaluation
from rl.trainer.adapter import read_adapter_config, read_base

RUN_CONFIG = "auralign_config.yaml"
FISH_NAME = "Fish Audio Research License"
FISH_ATTRIBUTION = (
    f"This model is licensed under the {FISH_NAME}, Copyright © 39 AI, INC. All Rights Reserved."
)
"""Prescribed by that licence (section IV a) for the Notice file of whatever derives from their models."""


@dataclass(frozen=True)
class Licence:
    """Of the policy that was trained. ``tag``: for the model card's head; ``files``: those that state it."""

    tag: str
    name: str
    attribution: str | None
    files: list[str]


def licence_of(folder: Path) -> Licence:
    """The licence that a policy's folder states.

    Raises:
        CheckpointError: a file that may state it isn't text.
    """
    stating = [
        file
        for pattern in ("LICEN[CS]E*", "COPYING*", "README*", "NOTICE*")
        for file in sorted(folder.glob(pattern))
    ]
    files = [file.name for file in stating if not file.name.startswith("README")]
    if folder == EMBEDDED / "policy":
        return Licence("apache-2.0", "Apache-2.0, as Auralign, in which it is embedded", None, files)
    for file in stating:
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{file}: isn't UTF-8 text ({error})") from error
        if FISH_NAME.lower() in text.lower():
            return Licence("other", FISH_NAME, FISH_ATTRIBUTION, files)
    if files:
        return Licence("other", f"that of {files[0]}", None, files)
    return Licence("unknown", "unknown: its folder states none; ask its authors before publishing", None, [])


def write_card(out: Path, base: Path, adapter: Path, run: Path | None) -> None:
    """Write README.md and NOTICE into ``out``, and the configuration of ``run`` if there is one.

    Raises:
        CheckpointError, ConfigError, RunFolderError: a file that they are made from is damaged.
    """
    licence, lora = licence_of(base), read_adapter_config(adapter)
    trained_on = read_base(adapter)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  (Markdown and plain text)
    )
    values: dict[str, Any] = {
        "base": base.name,
        "fingerprint": trained_on.fingerprint if trained_on else None,
        "licence": licence,
        "lora": lora,
        "name": out.name,
        "config": None,
        "evaluation": None,
        "run_config": RUN_CONFIG,
    }
    if run is not None:
        config = load_config(run / CONFIG_FILE)
        values["config"] = config
        values["evaluation"] = read_evaluation(run)
        values["nodes"] = yaml.safe_dump(config.rewards.nodes, sort_keys=False).rstrip()
        shutil.copyfile(run / CONFIG_FILE, out / RUN_CONFIG)
    (out / "README.md").write_text(environment.get_template("card.md").render(values), encoding="utf-8")
    kept = base / "NOTICE"
    values["kept"] = kept.read_text(encoding="utf-8").rstrip() if kept.is_file() else None
    (out / "NOTICE").write_text(environment.get_template("notice.txt").render(values), encoding="utf-8")
