"""A headless Chromium to open pages in, driven by the DevTools protocol."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in BROWSERS if (found := shutil.which(name))), None)


class Page:
    """Its one page. ``address``: of its DevTools."""

    def __init__(self, address: str) -> None:
        self.address = address

    async def run(self, url: str, *scripts: str) -> list[Any]:
        """What each script gives on the page at ``url``, in order; a promise's value is awaited."""
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

            await call("Page.navigate", url=url)
            ready = "document.readyState === 'complete' && location.protocol !== 'about:'"
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
def browser(tmp_path: Path) -> Iterator[str]:
    """The port of a browser's DevTools; skips the test where none is installed."""
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


def look(port: str, url: str, *scripts: str) -> list[Any]:
    """What each script gives on the page at ``url``; see `Page.run`."""

    async def run() -> list[Any]:
        return await Page(await first_page(port)).run(url, *scripts)

    return asyncio.run(run())
