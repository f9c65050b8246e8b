"""The pictures of an audit's report."""

from __future__ import annotations

import base64
import io

import numpy as np
from matplotlib import image
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from scipy import signal

from rewards.audit.diagnose import TOTAL
from rewards.audit.run import Audit
from rewards.types import Clip
from rl.report.plots import Theme, new_figure, panel_grid, style

_DYNAMIC_RANGE = 70.0  # dB, of the spectrograms


def figures(audit: Audit, theme: Theme) -> dict[str, Figure]:
    """By name, those that there is data for."""
    made = {"distributions": _distributions(audit, theme)}
    if any(not np.isnan(one.explained) for one in audit.diagnosis.outputs):
        made["explained"] = _explained(audit, theme)
    made["correlations"] = _matrix(audit.diagnosis.correlations, theme, "Correlation inside groups")
    made["nuisance"] = _matrix(audit.diagnosis.nuisance, theme, "Correlation with what is measured")
    if len(np.unique(audit.data.steps)) > 1:
        made["drift"] = _drift(audit, theme)
    if any(not probe.skipped for probe in audit.probes):
        made["probes"] = _probes(audit, theme)
    if audit.people is not None and any(one.bins for one in audit.people.calibrations):
        made["reliability"] = _reliability(audit, theme)
    return made


def spectrogram_uri(clip: Clip) -> str:
    """A PNG of the clip's log power spectrum up to 8 kHz as a data URI, "" for clips under 40 ms."""
    size = round(0.025 * clip.sample_rate)
    if len(clip.audio) < 2 * size:
        return ""
    frequencies, _, power = signal.spectrogram(
        clip.audio, clip.sample_rate, nperseg=size, noverlap=size - round(0.01 * clip.sample_rate)
    )
    level = 10 * np.log10(power[frequencies <= 8000] + 1e-12)
    buffer = io.BytesIO()
    top = float(level.max())
    image.imsave(buffer, level[::-1], vmin=top - _DYNAMIC_RANGE, vmax=top, cmap="magma", format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _columns(audit: Audit) -> dict[str, np.ndarray]:
    columns = {TOTAL: audit.scores.total, **audit.scores.values}
    return {name: column[~np.isnan(column)] for name, column in columns.items() if not np.isnan(column).all()}


def _distributions(audit: Audit, theme: Theme) -> Figure:
    columns = _columns(audit)
    figure, panels = panel_grid(max(1, len(columns)), theme)
    for axes, (name, column) in zip(panels, columns.items(), strict=False):
        style(axes, theme, name)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.hist(column, bins=30, color=theme.first)
    return figure


def _explained(audit: Audit, theme: Theme) -> Figure:
    shares = {one.name: one.explained for one in audit.diagnosis.outputs if not np.isnan(one.explained)}
    figure = new_figure(9, 0.6 + 0.35 * len(shares), theme)
    axes = figure.add_subplot()
    style(axes, theme, "Share of the total's variance inside groups")
    axes.barh(list(shares)[::-1], list(shares.values())[::-1], color=theme.first)
    axes.axvline(audit.settings.max_explained, color=theme.second, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="y", visible=False)
    return figure


def _matrix(rows: dict[str, dict[str, float]], theme: Theme, title: str) -> Figure:
    names, columns = list(rows), list(next(iter(rows.values())))
    values = np.array([[rows[name][column] for column in columns] for name in names])
    figure = new_figure(max(5, 1.6 + 0.85 * len(columns)), 1.1 + 0.4 * len(names), theme)
    axes = figure.add_subplot()
    style(axes, theme, title)
    axes.imshow(values, cmap="PuOr_r", vmin=-1, vmax=1, aspect="auto")
    axes.set_xticks(range(len(columns)), columns, rotation=35, ha="right")
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    for (y, x), value in np.ndenumerate(values):
        if not np.isnan(value):
            colour = "#ffffff" if abs(value) > 0.6 else "#1d2530"
            axes.text(x, y, f"{value:.2f}", ha="center", va="center", fontsize=7.5, color=colour)
    return figure


def _drift(audit: Audit, theme: Theme) -> Figure:
    drifts = [drift for drift in audit.diagnosis.drift if len(drift.steps) > 1]
    figure, panels = panel_grid(max(1, len(drifts)), theme)
    for axes, drift in zip(panels, drifts, strict=False):
        style(axes, theme, drift.name)
        axes.plot(drift.steps, drift.means, color=theme.first, marker="o", markersize=3)
    return figure


def _probes(audit: Audit, theme: Theme) -> Figure:
    shown = [probe for probe in audit.probes if not probe.skipped][::-1]
    figure = new_figure(9, 0.6 + 0.26 * len(shown), theme)
    axes = figure.add_subplot()
    style(axes, theme, "Attacked clips that score no lower than the clean ones, share")
    limit = audit.settings.max_fooled
    colours = [theme.second if probe.fooled > limit else theme.first for probe in shown]
    axes.barh([probe.name for probe in shown], [probe.fooled for probe in shown], color=colours)
    axes.axvline(limit, color=theme.text, linewidth=1)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.grid(axis="y", visible=False)
    return figure


def _reliability(audit: Audit, theme: Theme) -> Figure:
    assert audit.people is not None
    shown = [one for one in audit.people.calibrations if one.bins]
    figure, panels = panel_grid(len(shown), theme)
    for axes, one in zip(panels, shown, strict=True):
        style(axes, theme, f"{one.output}: {one.spearman:+.2f}")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.plot([b.reward for b in one.bins], [b.people for b in one.bins], color=theme.first, marker="o")
    return figure
