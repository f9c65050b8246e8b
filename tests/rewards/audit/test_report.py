"""The report opens in a real browser: a heading sorts, a clip plays, a figure is the one in audit.json."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from rl.cli.audit import main
from tests.rewards.audit.cases import recipe

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Page:
    """A page of a headless Chromium, driven by the DevTools protocol."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def run(self, page: Path, *scripts: str) -> list[Any]:
        """What each script gives on the page, in order; a promise's value is awaited."""
        async with aiohttp.ClientSession() as session, session.ws_connect(self.address) as socket:
            number = 0

            async def call(method: str, **parameters: Any) -> dict[str, Any]:
                nonlocal number
                number += 1
                await socket.send_json({"id": number, "method": method, "params": parameters})
                while True:
                    answer = await socket.receive_json(timeout=120)
                    if answer.get("id") == number:
                        return answer["result"]

            await call("Page.navigate", url=page.as_uri())
            ready = "document.readyState === 'complete' && location.protocol === 'file:'"
            while not (await call("Runtime.evaluate", expression=ready))["result"].get("value"):
                await asyncio.sleep(0.1)
            found = []
            for script in scripts:
                answer = await call(
                    "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
                )
                assert "exceptionDetails" not in answer, answer
                found.append(answer["result"].get("value"))
            return found


@pytest.fixture
def browser(tmp_path: Path) -> Any:
    if BROWSER is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    profile = tmp_path / "profile"
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--mute-audio", "--remote-debugging-port=0"]
    flags += ["--autoplay-policy=no-user-gesture-required", f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen([BROWSER, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    port = profile / "DevToolsActivePort"
    for _ in range(1200):
        if port.exists() and len(port.read_text().split()) == 2:
            break
        assert process.poll() is None, "the browser ended"
        time.sleep(0.1)
    yield port.read_text().split()[0]
    process.terminate()
    process.wait()


async def first_page(port: str) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/json/list") as answer,
    ):
        return next(page["webSocketDebuggerUrl"] for page in await answer.json() if page["type"] == "page")


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

    async def look() -> list[Any]:
        return await Page(await first_page(browser)).run(out / "report.html", sort, play, read)

    order, (duration, played), mean = asyncio.run(look())
    audit = json.loads((out / "audit.json").read_text())
    gains = {probe["name"]: probe["gain"] for probe in audit["probes"]}
    assert order == sorted(gains, key=lambda name: -gains[name])
    assert 0 < played <= duration
    assert not math.isnan(duration)
    assert mean == f"{audit['outputs'][0]['mean']:.3f}"
