"""A server that lists models, as judges' servers do, and a machine that is the same wherever tests run."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rl.doctor import endpoints
from rl.doctor.machine import Machine


class ModelServer:
    """``status`` and ``body`` are what it answers to whatever it is asked; ``hang``: it never does."""

    def __init__(self) -> None:
        self.status, self.hang = 200, False
        self.body = json.dumps({"object": "list", "data": [{"id": "judge-1", "object": "model"}]}).encode()
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.ended = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.paths.append(self.path)
                outer.keys.append(self.headers["authorization"])
                if outer.hang:
                    outer.ended.wait()
                    return
                self.send_response(outer.status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.base_url = f"http://127.0.0.1:{self.port}/v1"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelServer]:
    """On the loopback interface, asked directly whatever proxy the environment names, with time for it."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(endpoints, "SECONDS", 120.0)
    model_server = ModelServer()
    thread = threading.Thread(target=model_server.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield model_server
    model_server.ended.set()
    model_server.server.shutdown()
    thread.join()
    model_server.server.server_close()


@pytest.fixture
def closed_port() -> int:
    """A port of this machine where nothing listens."""
    listener = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    port = listener.server_address[1]
    listener.server_close()
    return port


@pytest.fixture
def laptop() -> Machine:
    """No GPU, 16 GiB, four cores."""
    return Machine((), 16 * 2**30, 4)
