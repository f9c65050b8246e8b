"""The report opens in a real browser: a heading sorts, a clip plays, a figure is the one in audit.json."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl.cli.audit import main
from tests.rewards.audit.browser import look
from tests.rewards.audit.cases import recipe


def test_the_report_in_a_browser(manifest: Callable[[Any], tuple[Path, Path]], browser: str) -> None:
    source, rewards = manifest(recipe("confidence + 0.01*judge", confidence="honest", judge="fair"))
    out = source.parent / "out"
    main([str(source), "--rewards", str(rewards), "--out", str(out), "probes=cut_25,cut_50,reversed,silence"])
    sort = """(() => {
        const headings = [...document.querySelectorAll("#probes th")];
        const heading = headings.find((th) => th.textContent === "change");
        heading.click();
        return [...document.querySelectorAll("#probes tbody tr")].map((row) => row.cells[0].textContent);
    })()"""
    play = """(async () => {
        document.querySelectorAll("details").forEach((part) => { part.open = true; });
        const audio = document.querySelector("audio");
        await audio.play();
        await new Promise((done) => {
            audio.addEventListener("timeupdate", () => audio.currentTime > 0 && done());
        });
        return [audio.duration, audio.currentTime];
    })()"""
    read = """(() => {
        const rows = [...document.querySelectorAll("#outputs tbody tr")];
        return rows.find((row) => row.cells[0].textContent === "total").cells[2].textContent;
    })()"""

    order, (duration, played), mean = look(browser, (out / "report.html").as_uri(), sort, play, read)
    audit = json.loads((out / "audit.json").read_text())
    gains = {probe["name"]: probe["gain"] for probe in audit["probes"]}
    assert order == sorted(gains, key=lambda name: -gains[name])
    assert 0 < played <= duration
    assert not math.isnan(duration)
    assert mean == f"{audit['outputs'][0]['mean']:.3f}"
