#!/usr/bin/env python
"""Several finished runs side by side, such as one configuration on three seeds: a table and the curves.

The table is Markdown: each run's change of each held-out metric with its interval. The curves are the mean
rewards of the training steps, averaged over five steps, since each step has prompts of its own.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from rl.cli.common import run_main
from rl.metrics import METRICS_FILE, read_metrics
from rl.run_folder import MetricRow, read_evaluation

STEPS = 5


def cell(row: MetricRow) -> str:
    """``0.48 -> 0.38 (-21 %; -0.13 to -0.07)``."""
    found = row.comparison
    interval = f"{found.low:+.3f} to {found.high:+.3f}"
    return f"{found.before:.3f} -> {found.after:.3f} ({100 * found.relative:+.1f} %; {interval})"


def table(runs: list[Path]) -> str:
    """The metrics that all runs have, one line each."""
    rows = [{row.name: row for row in read_evaluation(run).rows} for run in runs]
    names = [name for name in rows[0] if all(name in row for row in rows)]
    lines = [["", *[run.name for run in runs]], ["---"] * (len(runs) + 1)]
    lines += [[name, *[cell(row[name]) for row in rows]] for name in names]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def curves(runs: list[Path]) -> Figure:
    """One panel for the total and each component of the reward, one line for each run."""
    metrics = {run.name: read_metrics(run / METRICS_FILE) for run in runs}
    parts = [row.name for row in read_evaluation(runs[0]).rows if row.role in ("total", "reward")]
    figure = Figure(figsize=(3.2 * len(parts), 2.8), layout="constrained")
    for axes, part in zip(figure.subplots(1, len(parts), squeeze=False)[0], parts, strict=True):
        for name, steps in metrics.items():
            values = np.array([step[f"reward/{part}/mean"] for step in steps])
            width = min(STEPS, len(values))
            smooth = np.convolve(values, np.ones(width) / width, mode="valid")
            axes.plot(np.arange(len(smooth)) + (width + 1) / 2, smooth, label=name)
        axes.set_title(part)
        axes.set_xlabel("step")
        axes.grid(alpha=0.3)
    figure.axes[0].legend()
    return figure


def main() -> None:
    """Print the table; write the figure where --plot says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of finished runs, with their evaluations")
    parser.add_argument("--plot", type=Path, help="a .png or .svg file for the curves")
    arguments = parser.parse_args()
    print(table(arguments.runs))
    if arguments.plot:
        curves(arguments.runs).savefig(arguments.plot, dpi=110)


if __name__ == "__main__":
    sys.exit(run_main(main))
