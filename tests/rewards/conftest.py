"""Speech to score: a real text-to-speech voice, synthesised once per session."""

from __future__ import annotations

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from hibari import Hibari

from rewards.types import Clip

RATE = 16000
SENTENCES = (
    "She gave him a small red box.",
    "Please open the window before you leave.",
    "The children played in the garden all day.",
    "We saw a bright light over the hill.",
    "Nobody knew where the captain had gone.",
)


@pytest.fixture(scope="session")
def speech() -> list[Clip]:
    """Five clean sentences of one voice, with another sentence of that voice as the reference."""
    tts = Hibari()

    def say(text: str, seed: int) -> np.ndarray:
        return soxr.resample(tts(text, seed=seed), tts.sample_rate, RATE).astype(np.float32)

    reference = say("My brother reads a book every evening.", 99)
    return [
        Clip(say(text, seed), RATE, text, text, reference=reference, reference_rate=RATE)
        for seed, text in enumerate(SENTENCES)
    ]


@pytest.fixture(scope="session")
def noise() -> np.ndarray:
    """Two seconds of white noise at -20 dBFS, float32."""
    return (0.1 * np.random.default_rng(0).standard_normal(2 * RATE)).astype(np.float32)


@pytest.fixture(scope="session")
def docs() -> str:
    return (Path(__file__).parents[2] / "docs" / "rewards.md").read_text(encoding="utf-8")


@dataclass
class Reply:
    """What the loopback server answers: at once or never (``hang``), whole or cut by a reset (``reset``)."""

    body: bytes
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False
    reset: bool = False


@dataclass
class Asked:
    """A request as the loopback server got it; ``body`` is the JSON, or the raw multipart form."""

    path: str
    headers: dict[str, str]
    body: Any


class Loopback:
    """An OpenAI-compatible server: ``reply`` says what it answers, ``asked`` holds what it was asked."""

    def __init__(self) -> None:
        self.reply: Callable[[Asked], Reply] = lambda asked: self.chat('{"reason": "", "score": 50}')
        self.asked: list[Asked] = []
        self.ended = threading.Event()
        loopback = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["content-length"]))
                is_json = self.headers["content-type"] == "application/json"
                headers = {name.lower(): value for name, value in self.headers.items()}
                asked = Asked(self.path, headers, json.loads(content) if is_json else content)
                loopback.asked.append(asked)
                reply = loopback.reply(asked)
                if reply.hang:
                    loopback.ended.wait()
                    return
                self.send_response(reply.status)
                for name, value in {"content-type": "application/json", **reply.headers}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body[: len(reply.body) // 2] if reply.reset else reply.body)
                if reply.reset:  # SO_LINGER 0: close sends a reset, with the rest of the body unsent
                    self.wfile.flush()
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base_url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"

    @staticmethod
    def chat(text: str | None, finish: str = "stop", **headers: str) -> Reply:
        """A chat completion."""
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        body = {"object": "chat.completion", "model": "served-1", "choices": [choice]}
        return Reply(json.dumps(body).encode(), headers=headers)

    @staticmethod
    def json(body: Any, status: int = 200, **headers: str) -> Reply:
        """Any JSON."""
        return Reply(json.dumps(body).encode(), status, headers)


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    """A server on the loopback interface, asked directly whatever proxy the environment names."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    server = Loopback()
    thread = threading.Thread(target=server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.ended.set()
    server.server.shutdown()
    thread.join()
    server.server.server_close()
