"""``rl-eval``: the benchmarks of the field on a checkpoint, an adapter or a folder of audio."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from pathlib import Path

from rl.cli.common import run_main
from rl.config import load_config
from rl.errors import ConfigError
from rl.evals import SUITES
from rl.schema import RunConfig

_EXAMPLES = """\
examples:
  rl-eval --config grpo_tiny.yaml --suite seed_tts --data tiny
      the embedded voice on the sample that ships with the suite
  rl-eval --config grpo_s2.yaml --suite seed_tts --data seedtts/en --adapter runs/grpo_s2 --against base
      a trained adapter on the benchmark, and beside it the checkpoint without it
  rl-eval --suite seed_tts --data seedtts/en --audio my_clips
      audio that is there: my_clips/<id>.wav or .flac
  rl-eval --suite tags --data tags.jsonl --audio new_clips --against old_clips
      two folders side by side, each pair judged in both orders
  rl-eval ... eval.nodes.asr.model=large-v3       or: --recipe my_recipe.yaml
      other models to measure with; configs/evals has the recipes
  rl-eval --config grpo_s2.yaml ... rollouts.max_frames=4000 evaluation.temperature=0.7
      keys of the configuration
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` defaults to the process's arguments. Returns the exit code."""
    return run_main(lambda: _eval(argv))


def _eval(argv: Sequence[str] | None) -> None:
    args = _parser().parse_intermixed_args(argv)
    suite = _suite(args.suite)
    if args.data is None:
        raise ConfigError("--data: name the benchmark's file or folder, or tiny for the sample that ships")
    measures = [text.removeprefix("eval.") for text in args.overrides if text.startswith("eval.")]
    overrides = [text for text in args.overrides if not text.startswith("eval.")]
    if args.config is None and overrides:
        raise ConfigError(f"{overrides[0]}: a key of the configuration, but there is no --config")
    config = None if args.config is None else load_config(args.config, overrides)

    from rich.console import Console

    from rl.evals.output import write_result
    from rl.evals.recipe import load_recipe
    from rl.evals.run import Request, run_eval
    from rl.evals.tables import print_result

    request = Request(suite, args.data, config, args.adapter, args.audio, args.against, args.items)
    result = run_eval(request, load_recipe(args.recipe or suite, measures))
    console = Console()
    print_result(result, console)
    out = Path(args.out) if args.out else _default_out(suite, args.audio, args.adapter, config)
    for path in write_result(result, out):
        console.print(str(path), markup=False, soft_wrap=True)


def _suite(name: str | None) -> str:
    if name in SUITES:
        return name
    known = f"there are: {', '.join(SUITES)}"
    if name is None:
        raise ConfigError(f"--suite: name one; {known}")
    near = difflib.get_close_matches(name, SUITES, n=1)
    hint = f"did you mean {near[0]}?" if near else known
    raise ConfigError(f"--suite {name}: there is no such suite; {hint}")


def _default_out(suite: str, audio: str | None, adapter: str | None, config: RunConfig | None) -> Path:
    """``<folder>_<suite>`` beside audio, else ``evals/<suite>`` in the run's folder, ``_<adapter>`` added."""
    if audio is not None:
        folder = Path(audio).resolve()
        return folder.with_name(f"{folder.name}_{suite}")
    assert config is not None
    behind = "" if adapter is None else f"_{Path(adapter).resolve().name}"
    return Path(config.output_dir, config.name, "evals", f"{suite}{behind}")


def _items(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, not {text!r}")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rl-eval",
        description="Run a benchmark of the field on a checkpoint, an adapter or a folder of audio.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="change a key of the configuration or, after `eval.`, of the recipe; the value is YAML",
    )
    add("--config", metavar="FILE", help="whose checkpoint: a YAML file, or a shipped configuration's name")
    add("--suite", metavar="SUITE", help=f"one of {', '.join(SUITES)}")
    add("--data", metavar="PATH", help="the benchmark's file or folder; tiny: the sample that ships")
    add("--adapter", metavar="DIR", help="an adapter's folder or a run's (its last checkpoint)")
    add("--audio", metavar="DIR", help="evaluate audio that is there, DIR/<id>.wav or .flac; sample nothing")
    add(
        "--against",
        metavar="DIR",
        help="compare with other audio, an adapter, or `base`, the checkpoint alone",
    )
    add("--recipe", metavar="FILE", help="what measures (default: configs/evals/<suite>.yaml)")
    add("--items", type=_items, metavar="N", help="only the first N items")
    add("--out", metavar="DIR", help="where to write (default: in the run's folder, or beside the audio)")
    return parser
