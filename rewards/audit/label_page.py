"""A page on this machine where people hear clips, without their scores or origin, and judge them."""

from __future__ import annotations

import csv
import io
import json
import os
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
from rich.console import Console

from rewards.audit.clips import ClipSet
from rewards.audit.groups import members
from rewards.audit.labels import COLUMNS, Label, read_labels
from rl.errors import AuditError
from rollouts.store import encode_flac, quantise

_LARGEST_BODY = 10_000


def serve_labels(data: ClipSet, path: Path, port: int = 0, seed: int = 0) -> None:
    """Serve the page until the process is interrupted; every answer is added to the CSV file ``path``.

    Raises `AuditError` where the port is taken or the file can't be used.
    """
    server = label_server(data, path, port, seed)
    Console().print(f"label at http://127.0.0.1:{server.server_port}/ (Ctrl-C ends); answers go to {path}")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        Console().print(f"labels: {path}", markup=False, soft_wrap=True)
    finally:
        server.server_close()


def label_server(data: ClipSet, path: Path, port: int = 0, seed: int = 0) -> ThreadingHTTPServer:
    """The server, on the loopback interface alone. Clips are numbered in an order drawn from ``seed``."""
    desk = _Desk(data, path, seed)
    page = (Path(__file__).parent / "label.html").read_bytes()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            if not self._from_here():
                return
            if asked.path == "/":
                self._send(page, "text/html; charset=utf-8")
            elif asked.path == "/next":
                query = parse_qs(asked.query)
                task = desk.next_task(query.get("rater", ["?"])[0], query.get("mode", ["score"])[0])
                self._send(json.dumps(task).encode(), "application/json")
            elif (
                asked.path.startswith("/clip/")
                and asked.path[6:].isdigit()
                and int(asked.path[6:]) < len(desk.order)
            ):
                self._send(desk.flac(int(asked.path[6:])), "audio/flac")
            else:
                self.send_error(HTTPStatus.NOT_FOUND)

        def do_POST(self) -> None:
            # JSON can't be sent across origins without a preflight, which isn't answered
            if not self._from_here():
                return
            length = int(self.headers.get("content-length") or 0)
            is_json = self.headers.get("content-type", "").startswith("application/json")
            if not is_json or length > _LARGEST_BODY:
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            try:
                desk.take(json.loads(self.rfile.read(length)))
            except (ValueError, KeyError, TypeError, IndexError):
                self.send_error(HTTPStatus.BAD_REQUEST)
                return
            self._send(b"{}", "application/json")

        def _from_here(self) -> bool:
            """Whether the page was asked for by its own address: another site's name may point here, too."""
            host = (self.headers.get("host") or "").rpartition(":")[0]
            if host in ("127.0.0.1", "localhost"):
                return True
            self.send_error(HTTPStatus.FORBIDDEN)
            return False

        def _send(self, body: bytes, kind: str) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.send_header("cache-control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """The terminal is left to the user."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise AuditError(f"--port {port}: can't be used ({error.strerror}); name another, or 0") from error


class _Desk:
    """Which clips are to be heard, under which numbers, and what was said of them."""

    def __init__(self, data: ClipSet, path: Path, seed: int) -> None:
        audible = [
            i for i, clip in enumerate(data.clips) if len(clip.audio) and np.isfinite(clip.audio).all()
        ]
        if not audible:
            raise AuditError(f"{data.source}: none of the clips can be heard")
        random = np.random.default_rng(seed)
        self.data, self.path, self._lock = data, path, Lock()
        self.order: list[int] = random.permutation(audible).tolist()
        number = {place: n for n, place in enumerate(self.order)}
        groups = [[number[int(p)] for p in places if int(p) in number] for places in members(data.groups)]
        pairs = [tuple(random.permutation(group)[:2].tolist()) for group in groups if len(group) > 1]
        self.pairs: list[tuple[int, ...]] = [pairs[i] for i in random.permutation(len(pairs)).tolist()]
        self.labels: list[Label] = read_labels(path, data.ids) if path.exists() else []

    def flac(self, number: int) -> bytes:
        clip = self.data.clips[self.order[number]]
        return encode_flac(quantise(clip.audio), clip.sample_rate)

    def next_task(self, rater: str, mode: str) -> dict[str, Any]:
        """What ``rater`` hasn't judged yet: one clip, or two of one prompt; ``{"left": 0}`` at the end."""
        mine = [label for label in self.labels if label.rater == rater]
        if mode == "choice":
            told = {frozenset((x.clip, x.other)) for x in mine if x.other is not None}
            left = [pair for pair in self.pairs if frozenset(map(self._id, pair)) not in told]
        else:
            done = {x.clip for x in mine if x.score is not None}
            left = [(n,) for n in range(len(self.order)) if self._id(n) not in done]
        if not left:
            return {"left": 0}
        text = self.data.clips[self.order[left[0][0]]].text
        return {"left": len(left), "clips": list(left[0]), "text": text}

    def take(self, answer: dict[str, Any]) -> None:
        """Add an answer to the file. Raises ValueError, KeyError, TypeError, IndexError for what is none."""
        rater = " ".join(str(answer["rater"]).split())[:80] or "?"
        clip = self._id(answer["clips"][0])
        if "choice" in answer:
            choice = {"clip": 1, "other": -1, "same": 0}[answer["choice"]]
            label = Label(clip, rater, other=self._id(answer["clips"][1]), choice=choice)
            row = [clip, rater, "", label.other, answer["choice"]]
        else:
            score = float(answer["score"])
            if not 1 <= score <= 5:
                raise ValueError(score)
            label = Label(clip, rater, score=score)
            row = [clip, rater, f"{score:g}", "", ""]
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lines = io.StringIO()
            writer = csv.writer(lines, lineterminator="\n")
            if not self.path.exists():
                writer.writerow(COLUMNS)
            writer.writerow(row)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(lines.getvalue())
                file.flush()
                os.fsync(file.fileno())
            self.labels.append(label)

    def _id(self, number: int) -> str:
        if not isinstance(number, int) or number < 0:
            raise ValueError(number)
        return self.data.ids[self.order[number]]
