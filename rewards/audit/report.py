"""The audit as one HTML file that needs nothing else: tables to sort, plots, and clips to hear and see."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rewards.audit.nuisance import transcript_of
from rewards.audit.plots import figures, spectrogram_uri
from rewards.audit.run import Audit
from rewards.types import Clip, Scores
from rl.report.html import environment, svg_uri
from rl.report.plots import DARK, LIGHT
from rollouts.store import encode_flac, quantise

_CAPTIONS = {
    "distributions": "Every value, of all clips.",
    "explained": "How much less the total varies inside groups when an output is held at its group's mean; "
    "the line is the limit.",
    "correlations": "Spearman's rank correlation inside groups, averaged: what the advantage sees.",
    "nuisance": "What shouldn't decide a reward; also inside groups.",
    "drift": "Means by training step.",
    "probes": "The line is what a recipe may let pass.",
    "reliability": "People's mean score of the clips, by fifths of the output; the figure is Spearman's.",
}
EXAMPLES = 2
"""Clips to hear of each attack."""


@dataclass(frozen=True)
class Heard:
    """A clip to listen to: "" where there is nothing to hear."""

    title: str
    audio: str
    picture: str
    total: float
    values: dict[str, float]
    transcript: str | None


@dataclass(frozen=True)
class Pair:
    """Two clips of one prompt, side by side."""

    text: str
    origin: str
    left: Heard
    right: Heard


def build_report(audit: Audit) -> str:
    """The page's text. Its only script is its own, named by hash in the page's policy; nothing is fetched."""
    folder = Path(__file__).parent
    script = (folder / "sort.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    light, dark = figures(audit, LIGHT), figures(audit, DARK)
    return (
        environment(folder)
        .get_template("audit.html")
        .render(
            audit=audit,
            nan=float("nan"),
            script=script,
            script_hash=digest,
            groups=len(np.unique(audit.data.groups)),
            steps=np.unique(audit.data.steps).tolist(),
            failed=[check for check in audit.checks if not check.passed],
            plots={name: (svg_uri(light[name]), svg_uri(dark[name]), _CAPTIONS[name]) for name in light},
            examples={probe.name: list(_examples(audit, probe.name)) for probe in audit.probes},
            movers=list(_movers(audit)),
        )
    )


def _examples(audit: Audit, name: str) -> Iterator[Pair]:
    under, scores = audit.attacked[name]
    probe = next(probe for probe in audit.probes if probe.name == name)
    for example in probe.examples[:EXAMPLES]:
        here, there = audit.data.ids.index(example.clip), under.ids.index(example.clip)
        clip = audit.data.clips[here]
        yield Pair(
            clip.text,
            example.clip,
            _heard("Clean", clip, audit.scores, here),
            _heard("Attacked", under.clips[there], scores, there),
        )


def _movers(audit: Audit) -> Iterator[Pair]:
    """The clips about which two recipes disagree most: once each, beside the best of its group."""
    if audit.comparison is None:
        return
    total = np.nan_to_num(audit.scores.total, nan=-np.inf)
    for mover in audit.comparison.movers[:6]:
        place = audit.data.ids.index(mover.clip)
        group = np.flatnonzero(audit.data.groups == audit.data.groups[place])
        best = int(group[np.argmax(total[group])])
        clip = audit.data.clips[place]
        moved = f"{mover.clip}: from {mover.left:+.2f} to {mover.right:+.2f} spreads of the advantage"
        yield Pair(
            clip.text,
            moved,
            _heard("This clip", clip, audit.scores, place),
            _heard("The best of its group", audit.data.clips[best], audit.scores, best),
        )


def _heard(title: str, clip: Clip, scores: Scores, place: int) -> Heard:
    audible = len(clip.audio) > 0 and bool(np.isfinite(clip.audio).all())
    flac = encode_flac(quantise(clip.audio), clip.sample_rate) if audible else b""
    return Heard(
        title=title,
        audio="data:audio/flac;base64," + base64.b64encode(flac).decode() if audible else "",
        picture=spectrogram_uri(clip) if audible else "",
        total=float(scores.total[place]),
        values={name: float(column[place]) for name, column in scores.values.items()},
        transcript=transcript_of(scores.details[place]),
    )
