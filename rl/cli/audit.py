"""``rl-audit``: does a reward deserve trust? Scored again, compared, diagnosed and attacked."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.cli.common import run_main
from rl.errors import AuditError

_EXAMPLES = """\
examples:
  rl-audit runs/grpo_tiny
      a run's rewards on its own rollouts: are the stored values right, what does each node do, what fools it
  rl-audit runs/grpo_tiny --total '0.5*asr.confidence + 0.5*quality'
      what another total of the same values would have said; nothing is scored again
  rl-audit runs/grpo_tiny --rewards configs/rewards/other.yaml
      another recipe on the saved audio; only nodes that the run's recipe lacks are computed
  rl-audit runs/b --against runs/a      or: --against intelligibility
      two runs, or two recipes, side by side
  rl-audit my_clips.jsonl --rewards tiny
      any audio: one line a clip, such as {"audio": "a.wav", "text": "Hello.", "reference": "voice.flac"}
  rl-audit runs/grpo_tiny --label       and then: --labels runs/grpo_tiny/audit/labels.csv
      let people score clips in the browser, and see how far the reward agrees with them
  rl-audit runs/grpo_tiny --fail-on fooled,missing,reproduction
      a gate for continuous integration: exit code 1, naming what failed
  rl-audit runs/grpo_tiny clips=256 probe_clips=64 max_bias=0.6
      settings; --help-settings lists them
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; ``argv`` defaults to the process's arguments. Returns 1 for checks that failed."""
    failed: list[str] = []
    return run_main(lambda: _audit(argv, failed)) or (1 if failed else 0)


def _audit(argv: Sequence[str] | None, failed: list[str]) -> None:
    args = _parser().parse_intermixed_args(argv)
    settings = _settings(args)
    gates = _gates(args.fail_on)
    source = Path(args.source)
    out = Path(args.out) if args.out else _default_out(source)
    if args.label:
        from rewards.audit.data_in import read_clips
        from rewards.audit.label_page import serve_labels

        serve_labels(
            read_clips(source, args.split, settings.clips), out / "labels.csv", args.port, settings.seed
        )
        return

    from rich.console import Console

    from rewards.audit.output import write_audit
    from rewards.audit.run import Request, run_audit
    from rewards.audit.summary import print_summary

    request = Request(
        source=str(source),
        rewards=args.rewards,
        total=args.total,
        against=args.against,
        split=args.split,
        labels=Path(args.labels) if args.labels else None,
        ask_judges=args.ask_judges,
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AuditError(f"{out}: can't be made ({error.strerror}); name another --out") from error
    audit = run_audit(request, settings, out / "cache")
    paths = write_audit(audit, out)
    console = Console()
    print_summary(audit, console)
    for path in paths:
        console.print(str(path), markup=False, soft_wrap=True)
    failed += [check.name for check in audit.checks if not check.passed and check.kind in gates]
    if failed:
        console.print(f"failed: {', '.join(failed)}", markup=False, soft_wrap=True)


def _default_out(source: Path) -> Path:
    """``audit/`` in a run's folder, ``<name>_audit/`` beside anything else."""
    if (source / "rollouts").is_dir():
        return source / "audit"
    return source.with_name(f"{source.stem}_audit")


def _settings(args: argparse.Namespace) -> Any:
    import yaml

    from rewards.audit.settings import AuditSettings
    from rewards.catalogue import checked_options
    from rl.config import read_yaml

    values: dict[str, Any] = {} if args.config is None else dict(read_yaml(Path(args.config)))
    for text in args.settings:
        key, equals, value = text.partition("=")
        if not equals:
            raise AuditError(f"command line: {text!r} is not key=value; e.g. clips=256")
        try:
            values[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise AuditError(f"command line: {key}: {value!r} is no YAML value; put it in quotes") from error
    if args.max_fooled is not None:
        values["max_fooled"] = args.max_fooled
    if args.no_probes:
        values["probes"] = "none"
    return AuditSettings(**checked_options(AuditSettings, values, "audit", "an audit"))


def _gates(text: str) -> set[str]:
    from rewards.audit.settings import KINDS
    from rewards.catalogue import suggest

    if text in ("", "all"):
        return set(KINDS) if text else set()
    wanted = {kind.strip() for kind in text.split(",")}
    for kind in sorted(wanted - KINDS.keys()):
        raise AuditError(f"--fail-on: there is no check {kind}; {suggest(kind, KINDS)}")
    return wanted


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rl-audit",
        description="Find out whether a reward deserves trust, on audio that is saved.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "source", help="a run folder, Parquet file, saved dataset, or .jsonl or .csv manifest"
    )
    parser.add_argument(
        "settings", nargs="*", metavar="KEY=VALUE", help="change a setting; the value is YAML"
    )
    add = parser.add_argument
    add(
        "--rewards", metavar="RECIPE", help="a reward recipe, file or shipped name, in place of the run's own"
    )
    add("--total", metavar="EXPRESSION", help="another total over the same outputs")
    add("--against", metavar="RECIPE|RUN", help="compare with a recipe on the same clips, or with a run")
    add("--split", default="train", choices=("train", "eval_before", "eval_after", "sample"), help="of a run")
    add("--max-fooled", type=float, metavar="SHARE", help="share of clips an attack may leave as good (0.05)")
    add("--no-probes", action="store_true", help="make no attacks: figures of the saved clips alone")
    add("--ask-judges", action="store_true", help="ask judges again: repeatability, order, wording")
    add("--label", action="store_true", help="serve clips to be scored by people in a browser, then stop")
    add("--labels", metavar="CSV", help="people's scores or choices, to compare with")
    add("--port", type=int, default=0, help="of the labelling page; 0: any that is free")
    add(
        "--fail-on",
        default="",
        metavar="KINDS",
        help="exit with 1 if such checks fail: all, or e.g. fooled,bias",
    )
    add("--config", metavar="FILE", help="YAML file with settings")
    add("--out", metavar="DIR", help="where to write (default: audit/ in the run's folder)")
    add("--help-settings", action=_HelpSettings, nargs=0, help="list every setting and every check")
    return parser


class _HelpSettings(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from dataclasses import fields

        from rich import box
        from rich.console import Console
        from rich.table import Table

        from rewards.audit.settings import KINDS, AuditSettings

        table = Table("setting", "default", "meaning", box=box.SIMPLE_HEAD, pad_edge=False)
        for f in fields(AuditSettings):
            table.add_row(f.name, "null" if f.default is None else str(f.default), f.metadata["help"])
        kinds = Table("check", "fails on", box=box.SIMPLE_HEAD, pad_edge=False)
        for kind, meaning in KINDS.items():
            kinds.add_row(kind, meaning)
        Console().print(table, kinds)
        parser.exit()
