"""What every command shares: configuration arguments, teaching help, and one-line errors."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import MISSING
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rl.config import load_config, schema_keys
from rl.errors import AuralignError, ConfigError
from rl.schema import RunConfig

_EXAMPLES = """\
examples:
  {prog} --config grpo_tiny.yaml
      a shipped configuration, by name
  {prog} --config my_run.yaml trainer.steps=20 rollouts.group_size=8
      a file of yours, with two keys changed
  {prog} --config grpo_tiny rewards=fish_s2
      the same run with another reward recipe
  {prog} --config grpo_tiny "rewards.total=0.5*asr.confidence + 0.5*quality"
      the same reward nodes, added up differently
"""
_RESUME_EXAMPLES = """\
  {prog} --resume runs/grpo_tiny
      go on from the last checkpoint in that run's folder, with the run's own configuration
  {prog} --replay runs/grpo_tiny "rewards.total=quality"
      train on the rollouts that a run saved, under other rewards; nothing is sampled
"""


@dataclass(frozen=True)
class Command:
    """A parsed command line: the checked configuration, and the run folder to go on from or to replay."""

    config: RunConfig
    resume: Path | None = None
    replay: Path | None = None


def parse(
    prog: str, description: str, argv: Sequence[str] | None = None, *, resumable: bool = False
) -> Command:
    """The command that ``argv`` (default: the process's arguments) asks for.

    ``--resume DIR`` without ``--config`` uses the configuration saved in that run folder; ``--resume``
    without a folder means the folder of the configured run. ``--replay DIR`` takes that run's configuration,
    too, under the name ``<name>_replay``. Raises `ConfigError`; exits on ``--help``, ``--help-config`` and on
    options that don't exist.
    """
    parser = new_parser(prog, description, resumable=resumable)
    args = parser.parse_intermixed_args(argv)
    overrides: list[str] = list(args.overrides)
    resume: str | None = getattr(args, "resume", None)
    if resume and "=" in resume and not Path(resume).exists():  # `--resume a.b=c`: an override, not a folder
        overrides.insert(0, resume)
        resume = ""
    replay: str | None = getattr(args, "replay", None)
    if replay is not None:
        return _replayed(replay, args.config, overrides, resume)
    if not resume:
        need_config(prog, args.config)
    if resume and not Path(resume).is_dir():
        raise ConfigError(f"--resume {resume}: no such run folder")
    source = Path(resume or "", "config.yaml") if args.config is None else args.config
    config = load_config(source, overrides)
    if resume is None:
        return Command(config)
    return Command(config, Path(resume) if resume else Path(config.output_dir, config.name))


def need_config(prog: str, config: str | None) -> str:
    """``config``, what ``--config`` names. Raises `ConfigError` where it isn't there."""
    if config is None:
        raise ConfigError(f"no configuration; add --config, e.g. {prog} --config grpo_tiny.yaml")
    return config


def _replayed(run: str, config: str | None, overrides: Sequence[str], resume: str | None) -> Command:
    if resume is not None:
        raise ConfigError("--replay and --resume: a replay is a run of its own; use one of them")
    saved = Path(run, "config.yaml")
    if not saved.is_file():
        raise ConfigError(f"--replay {run}: no run folder with a config.yaml")
    named = any(text.partition("=")[0].strip() == "name" for text in overrides)
    own = [] if named or config is not None else [f"name={load_config(saved).name}_replay"]
    return Command(load_config(config or saved, [*own, *overrides]), replay=Path(run))


def run_main(command: Callable[[], None]) -> int:
    """Run ``command`` and return the exit code: 2 after an `AuralignError`, printed as one line.

    Libraries' notices to each other, about which a user can do nothing, are not shown.
    """
    try:
        with warnings.catch_warnings():
            # TRL's own way to vLLM isn't used
            warnings.filterwarnings("ignore", "TRL currently supports vLLM", UserWarning)
            warnings.filterwarnings("ignore", category=FutureWarning, module="transformers|vllm")
            # of the keys and values that a layer returns, to which nothing writes
            warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
            os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
            logging.getLogger("torch._library.triton").setLevel(logging.ERROR)  # that a CPU has no Triton
            command()
    except AuralignError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


def new_parser(prog: str, description: str, *, resumable: bool = False) -> argparse.ArgumentParser:
    """A parser of ``--config``, ``--help-config`` and overrides; ``resumable``: also of the ways to go on."""
    examples = _EXAMPLES + (_RESUME_EXAMPLES if resumable else "")
    parser = argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=examples.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="change one key; the value is YAML")
    parser.add_argument("--config", metavar="FILE", help="a YAML file, or a shipped configuration's name")
    if resumable:
        parser.add_argument(
            "--resume",
            nargs="?",
            const="",
            metavar="DIR",
            help="go on from the last checkpoint in DIR (default: the folder of the configured run)",
        )
        parser.add_argument(
            "--replay", metavar="DIR", help="train on the rollouts saved in that run's folder; sample nothing"
        )
    parser.add_argument(
        "--help-config", action=_HelpConfig, nargs=0, help="list every key with its type, default and meaning"
    )
    return parser


class _HelpConfig(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print_schema()
        parser.exit()


def print_schema() -> None:
    """Print every configuration key with its default, its meaning and its allowed values."""
    table = Table("key", "default", "meaning", box=box.SIMPLE_HEAD, pad_edge=False)
    table.columns[0].no_wrap = True
    section = ""
    for key in schema_keys().values():
        if key.name.rpartition(".")[0] != section:
            section = key.name.rpartition(".")[0]
            table.add_section()
        meaning = Text.assemble(key.help, (f" ({key.expects})", "dim"))
        table.add_row(Text(key.name, style="bold"), _default_text(key.default), meaning)
    Console().print(table)


def _default_text(default: object) -> Text:
    """``default`` as YAML would have it."""
    return Text("required", style="red") if default == MISSING else Text(json.dumps(default))
