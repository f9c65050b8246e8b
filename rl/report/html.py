"""One HTML file that shows a run: what changed, what it sounds like, how training went, and its config."""

from __future__ import annotations

import base64
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure

from rl.config import config_hash, load_config
from rl.metrics import METRICS_FILE, read_metrics
from rl.report.plots import DARK, LIGHT, figures, save_plots, svg
from rl.run_folder import CONFIG_FILE, REPORT_FILE, ROLES, SavedClip, read_evaluation, read_samples

_CAPTIONS = {
    "before_after": "Means over the held-out prompts; the whisker is the 95% interval of the change.",
    "total": "The band is one standard deviation within a group of samples of the same prompt: what the "
    "advantage is made of.",
    "components": "Every output of the reward graph, whether the total uses it or not; bands as above.",
    "learner": "The policy's distance from where it started, how sure it is, and how long it speaks.",
}


def write_report(run_dir: str | Path) -> Path:
    """Write ``plots/*.png`` and ``report.html`` from the other files of ``run_dir``; returns the page's path.

    A run without an evaluation or samples gets a report without them. Raises RunFolderError or ConfigError
    when ``metrics.jsonl`` or ``config.yaml`` is missing, or a file is damaged.
    """
    run_dir = Path(run_dir)
    page = build_html(run_dir)
    save_plots(run_dir)
    path = run_dir / REPORT_FILE
    partial = path.with_name(path.name + ".tmp")
    partial.write_text(page, encoding="utf-8")
    partial.replace(path)
    return path


def build_html(run_dir: str | Path) -> str:
    """The report's text: no scripts, no links to anything outside. Errors as of `write_report`."""
    run_dir = Path(run_dir)
    config_path = run_dir / CONFIG_FILE
    config = load_config(config_path)
    metrics = read_metrics(run_dir / METRICS_FILE)
    evaluation = read_evaluation(run_dir)
    light, dark = figures(metrics, evaluation, LIGHT), figures(metrics, evaluation, DARK)
    return (
        environment()
        .get_template("template.html")
        .render(
            config=config,
            config_hash=config_hash(config),
            config_text=config_path.read_text(encoding="utf-8"),
            steps=int(metrics[-1]["step"]) if metrics else 0,
            seconds=_total_seconds(metrics),
            finished=_day(metrics[-1]["time"]) if metrics else "",
            evaluation=evaluation,
            roles=ROLES,
            pairs=read_samples(run_dir),
            plots={name: (svg_uri(light[name]), svg_uri(dark[name]), _CAPTIONS[name]) for name in light},
        )
    )


def environment(*folders: Path) -> Environment:
    """Templates of ``folders`` and of this one, with filters for figures and clips."""
    environment = Environment(
        autoescape=True,
        loader=FileSystemLoader([*folders, Path(__file__).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": _number,
        "signed": _signed,
        "percent": _percent,
        "duration": _duration,
        "flac_uri": _flac_uri,
    }
    return environment


def _number(value: float, digits: int = 3) -> str:
    if math.isnan(value):
        return "–"
    return f"{value:.1f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def _signed(value: float) -> str:
    return _sign(value) + _number(abs(value))


def _percent(value: float) -> str:
    return _number(value) if math.isnan(value) else f"{_sign(value)}{abs(value):.1%}"


def _sign(value: float) -> str:
    return "+" if value > 0 else "−" if value < 0 else ""


def _duration(seconds: float) -> str:
    if math.isnan(seconds):
        return "–"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def _day(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0")


def _total_seconds(metrics: list[dict[str, Any]]) -> float:
    """Time spent in steps; pauses between a stop and a resume don't count. NaN when no step was timed."""
    timed = [row["time/step_s"] for row in metrics if "time/step_s" in row]
    return math.fsum(timed) if timed else math.nan


def svg_uri(figure: Figure) -> str:
    """A figure as a data URI."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg(figure)).decode()


def _flac_uri(clip: SavedClip) -> str:
    return "data:audio/flac;base64," + base64.b64encode(clip.flac or b"").decode()
