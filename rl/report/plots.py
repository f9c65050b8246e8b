"""Plots of a run's metrics and of its evaluation, for light and dark pages."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rl.metrics import METRICS_FILE, read_metrics
from rl.run_folder import PLOTS_FOLDER, Evaluation, MetricRow, read_evaluation

Metrics = Sequence[dict[str, float]]

_COLUMNS = 3
_FEW_POINTS = 40  # up to here each step gets a dot, so that a lone step between gaps can be seen


@dataclass(frozen=True)
class Theme:
    """Colours of a plot; blue and orange stay apart for every kind of colour vision."""

    background: str
    text: str
    faint: str
    first: str
    second: str
    neutral: str


LIGHT = Theme("#ffffff", "#1d2530", "#d9dee5", "#2563eb", "#d97706", "#a3acb9")
DARK = Theme("#171c24", "#dce3ec", "#343d4a", "#6ea3ff", "#f5a742", "#66717f")


def figures(metrics: Metrics, evaluation: Evaluation | None, theme: Theme) -> dict[str, Figure]:
    """The figures by name, those that the data has: ``total``, ``components``, ``learner``, ``before_after``.

    ``metrics``: lines of ``metrics.jsonl``, under the names of docs/run_folder.md.
    """
    names = sorted({name for row in metrics for name in row})
    parts = [name.split("/")[1] for name in names if name.startswith("reward/") and name.endswith("/mean")]
    made: dict[str, Figure] = {}
    if "total" in parts:
        made["total"] = _total(metrics, theme)
    components = [part for part in parts if part != "total"]
    if components:
        made["components"] = _components(metrics, components, theme)
    panels = [panel for panel in _LEARNER_PANELS if any(key in names for key, _ in panel[1])]
    if panels:
        made["learner"] = _learner(metrics, panels, theme)
    if evaluation is not None and evaluation.rows:
        made["before_after"] = _before_after(evaluation.rows, theme)
    return made


def svg(figure: Figure) -> bytes:
    """``figure`` as an SVG file; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "auralign"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save_plots(run_dir: str | Path) -> list[Path]:
    """Write ``plots/<name>.png`` for each of `figures`, on white. Raises RunFolderError."""
    run_dir = Path(run_dir)
    made = figures(read_metrics(run_dir / METRICS_FILE), read_evaluation(run_dir), LIGHT)
    folder = run_dir / PLOTS_FOLDER
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in made.items():
        paths.append(folder / f"{name}.png")
        figure.savefig(paths[-1], dpi=144)
    return paths


_Line = tuple[str, str]  # metric name, legend
_LEARNER_PANELS: tuple[tuple[str, tuple[_Line, ...]], ...] = (
    ("KL to the starting policy", (("learner/kl_slow", "slow AR"), ("learner/kl_fast", "fast AR"))),
    ("Entropy, nats per code", (("learner/entropy_slow", "slow AR"), ("learner/entropy_fast", "fast AR"))),
    ("Clipped ratios, share", (("learner/clip_slow", "slow AR"), ("learner/clip_fast", "fast AR"))),
    (
        "Sampler against learner, mean |Δ log-prob|",
        (("learner/mismatch_mean_slow", "slow AR"), ("learner/mismatch_mean_fast", "fast AR")),
    ),
    (
        "Sampler against learner, largest |Δ log-prob|",
        (("learner/mismatch_max_slow", "slow AR"), ("learner/mismatch_max_fast", "fast AR")),
    ),
    ("Effective sample size, share", (("learner/ess_slow", "slow AR"), ("learner/ess_fast", "fast AR"))),
    ("Completion length, frames", (("rollout/frames", ""),)),
    ("Cut at the length limit, share", (("rollout/length_stopped", ""),)),
    ("Gradient norm", (("learner/grad_norm", ""),)),
)


def _total(metrics: Metrics, theme: Theme) -> Figure:
    figure = new_figure(9, 3.4, theme)
    axes = figure.add_subplot()
    style(axes, theme, "Total reward: mean and spread within groups")
    _band(axes, metrics, "total", theme.first)
    axes.set_xlabel("step", color=theme.text)
    return figure


def _components(metrics: Metrics, names: Sequence[str], theme: Theme) -> Figure:
    figure, panels = panel_grid(len(names), theme)
    for axes, name in zip(panels, names, strict=True):
        style(axes, theme, name)
        _band(axes, metrics, name, theme.first)
    return figure


def _learner(metrics: Metrics, wanted: Sequence[tuple[str, tuple[_Line, ...]]], theme: Theme) -> Figure:
    figure, panels = panel_grid(len(wanted), theme)
    for axes, (title, lines) in zip(panels, wanted, strict=True):
        style(axes, theme, title)
        for (key, label), colour in zip(lines, (theme.first, theme.second), strict=False):
            steps, values = _series(metrics, key)
            axes.plot(steps, values, color=colour, label=label or None, marker=_marker(steps), markersize=3)
        if len(lines) > 1:
            axes.legend(frameon=False, labelcolor=theme.text, fontsize=8)
    return figure


def _before_after(rows: Sequence[MetricRow], theme: Theme) -> Figure:
    figure, panels = panel_grid(len(rows), theme, height=1.25)
    for axes, row in zip(panels, rows, strict=True):
        change = row.comparison
        colour = {"better": theme.first, "worse": theme.second}.get(row.verdict, theme.text)
        style(axes, theme, f"{row.name}: {row.verdict}")
        axes.barh([1, 0], [change.before, change.after], height=0.7, color=[theme.neutral, colour])
        if not math.isnan(change.low):
            ends = [[change.delta - change.low], [change.high - change.delta]]
            axes.errorbar(change.after, 0, xerr=np.maximum(ends, 0), color=theme.text, capsize=3)
        axes.set_yticks([1, 0], ["before", "after"], color=theme.text)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.grid(axis="y", visible=False)
    return figure


def _band(axes: Axes, metrics: Metrics, name: str, colour: str) -> None:
    steps, mean = _series(metrics, f"reward/{name}/mean")
    _, spread = _series(metrics, f"reward/{name}/std")
    axes.fill_between(steps, mean - spread, mean + spread, color=colour, alpha=0.18, linewidth=0)
    axes.plot(steps, mean, color=colour, marker=_marker(steps), markersize=3)


def _series(metrics: Metrics, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values; NaN, which leaves a gap, where a step lacks the metric."""
    steps = np.array([row["step"] for row in metrics])
    return steps, np.array([row.get(name, math.nan) for row in metrics], dtype=float)


def _marker(steps: np.ndarray) -> str | None:
    return "o" if len(steps) <= _FEW_POINTS else None


def new_figure(width: float, height: float, theme: Theme) -> Figure:
    """An empty figure in the theme's colours."""
    return Figure(figsize=(width, height), layout="constrained", facecolor=theme.background)


def panel_grid(count: int, theme: Theme, height: float = 2.3) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels, up to three in a row."""
    columns = min(count, _COLUMNS)
    rows = math.ceil(count / columns)
    figure = new_figure(3.6 * columns, (height + 0.25) * rows, theme)
    figure.set_layout_engine("constrained", h_pad=0.1)
    return figure, [figure.add_subplot(rows, columns, place) for place in range(1, count + 1)]


def style(axes: Axes, theme: Theme, title: str) -> None:
    """The look of every panel: a title on the left, a faint grid, no frame."""
    axes.set_facecolor(theme.background)
    axes.set_title(title, loc="left", color=theme.text, fontsize=9.5)
    axes.grid(color=theme.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    axes.tick_params(colors=theme.text, labelsize=8, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
