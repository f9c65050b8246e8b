"""What a training run shows while it runs, and the table at its end.

On a terminal a progress bar with the time left and a table that updates in place; elsewhere one plain line
for each step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from rl.run_folder import ROLES, MetricRow

FIRST_STEPS = 5  # the mean over these is what "since start" compares with

_LEARNER = (
    ("loss", "learner/loss"),
    ("KL slow", "learner/kl_slow"),
    ("KL fast", "learner/kl_fast"),
    ("entropy slow", "learner/entropy_slow"),
    ("entropy fast", "learner/entropy_fast"),
    ("clipped slow", "learner/clip_slow"),
    ("clipped fast", "learner/clip_fast"),
    ("gradient norm", "learner/grad_norm"),
    ("frames", "rollout/frames"),
    ("frames/s", "rollout/frames_per_s"),
)


_MISMATCH = (  # in the table only: a plain line has no room
    ("mean |Δ log-prob| slow", "learner/mismatch_mean_slow"),
    ("fast", "learner/mismatch_mean_fast"),
    ("largest slow", "learner/mismatch_max_slow"),
    ("fast", "learner/mismatch_max_fast"),
    ("effective samples slow", "learner/ess_slow"),
    ("fast", "learner/ess_fast"),
    ("dropped groups", "learner/dropped_groups"),
    ("stale rollouts", "rollout/stale"),
)


class LiveView:
    """Shows each step of a run of ``total_steps``; a context manager.

    ``history``: the lines of ``metrics.jsonl`` that a resumed run starts from. ``console``: where to show;
    a plain line for each step if that is no terminal.
    """

    def __init__(
        self,
        total_steps: int,
        history: Sequence[Mapping[str, float]] = (),
        console: Console | None = None,
    ) -> None:
        self._console = console or Console()
        self._total_steps = total_steps
        self._first: list[Mapping[str, float]] = list(history[:FIRST_STEPS])
        self._progress = Progress(
            TextColumn("[bold]step"),
            MofNCompleteColumn(),
            BarColumn(bar_width=None),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=self._console,
            expand=True,
            speed_estimate_period=3600,
        )
        done = int(history[-1]["step"]) if history else 0
        self._task = self._progress.add_task("train", total=total_steps, completed=done)
        self._live = Live(self._progress, console=self._console, refresh_per_second=2)

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def step(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show ``metrics`` of a finished step, under the names of docs/run_folder.md."""
        if len(self._first) < FIRST_STEPS:
            self._first.append(metrics)
        if not self._console.is_terminal:
            self._console.print(plain_line(step, self._total_steps, metrics), markup=False, soft_wrap=True)
            return
        self._progress.update(self._task, completed=step)
        self._live.update(Group(self._progress, self._reward_table(metrics), _learner_table(metrics)))

    def note(self, message: str) -> None:
        """Print one line above the view."""
        self._console.print(message, markup=False, soft_wrap=True)

    def _reward_table(self, metrics: Mapping[str, float]) -> Table:
        gated = metrics.get("reward/gated", math.nan)
        table = Table("reward", box=None, pad_edge=False, header_style="dim")
        for heading in ("mean", "since start", "spread in group", "missing"):
            table.add_column(heading, justify="right", min_width=11)
        for name in _reward_names(metrics):
            mean = metrics[f"reward/{name}/mean"]
            start = _mean([row.get(f"reward/{name}/mean", math.nan) for row in self._first])
            table.add_row(
                name,
                number(mean),
                number(mean - start, signed=True),
                number(metrics.get(f"reward/{name}/std", math.nan)),
                _share(metrics.get(f"reward/{name}/missing", math.nan)),
                style="bold" if name == "total" else None,
            )
        table.caption, table.caption_justify = f"gated: {_share(gated)}", "left"
        return table


def plain_line(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """One step as one line of text."""
    parts = [f"step {step}/{total_steps}"]
    parts += [f"{name} {number(metrics[f'reward/{name}/mean'])}" for name in _reward_names(metrics)]
    parts += [f"{label} {number(metrics[key])}" for label, key in _LEARNER if key in metrics]
    if "time/step_s" in metrics:
        parts.append(f"{metrics['time/step_s']:.1f} s")
    return "  ".join(parts)


def before_after_table(rows: Sequence[MetricRow]) -> Table:
    """The evaluation for the terminal, within 80 columns: the figures of the report's table."""
    table = Table(
        title="Held-out prompts, before and after",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("", no_wrap=True)
    for heading in ("before", "after", "change", "95% interval", "relative"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("")
    colours = {"better": "green", "worse": "red"}
    role = None
    for row in rows:
        if row.role != role and row.role != "total":
            table.add_row(f"[dim]{ROLES[row.role]}[/dim]")
        role, change = row.role, row.comparison
        verdict = "unclear" if row.verdict == "no clear change" else row.verdict
        colour = colours.get(verdict)
        table.add_row(
            row.name,
            f"{change.before:.3f}",
            f"{change.after:.3f}",
            f"{change.delta:+.3f}",
            f"{change.low:+.3f} {change.high:+.3f}",
            "-" if math.isnan(change.relative) else f"{change.relative:+.1%}",
            f"[{colour}]{verdict}[/{colour}]" if colour else verdict,
            style="bold" if row.role == "total" else None,
        )
    return table


def number(value: float, *, signed: bool = False) -> str:
    """Four significant digits; ``-`` for a missing value."""
    if math.isnan(value):
        return "-"
    return f"{value:{'+' if signed else ''}.4g}"


def _learner_table(metrics: Mapping[str, float]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for lines in (_LEARNER, _MISMATCH):
        cells = [f"[dim]{label}[/dim] {number(metrics[key])}" for label, key in lines if key in metrics]
        for start in range(0, len(cells), 4):
            table.add_row(*cells[start : start + 4])
    return table


def _reward_names(metrics: Mapping[str, float]) -> list[str]:
    """The total, then the outputs in the order in which they were logged."""
    names = [key.split("/")[1] for key in metrics if key.startswith("reward/") and key.endswith("/mean")]
    return sorted(names, key=lambda name: name != "total")


def _mean(values: Sequence[float]) -> float:
    present = [value for value in values if not math.isnan(value)]
    return math.fsum(present) / len(present) if present else math.nan


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1%}"
