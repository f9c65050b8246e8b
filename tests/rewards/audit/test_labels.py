"""People's labels: the page that takes them, the file that keeps them, and what is made of them."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

import numpy as np
import pytest
import soundfile

from rewards.audit.clips import ClipSet
from rewards.audit.label_page import label_server
from rewards.audit.labels import Label, calibrate, read_labels
from rl.errors import AuditError
from tests.rewards.audit.browser import look

OPENER = build_opener(ProxyHandler({}))


@pytest.fixture
def page(takes: ClipSet, tmp_path: Path) -> Iterator[str]:
    server = label_server(takes, tmp_path / "labels.csv", seed=1)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def get(address: str, **headers: str) -> bytes:
    return OPENER.open(Request(address, headers=headers), timeout=30).read()


def post(address: str, content: Any, kind: str = "application/json") -> None:
    body = json.dumps(content).encode()
    OPENER.open(Request(address, data=body, headers={"content-type": kind}), timeout=30).read()


def status(address: str, *content: Any, **headers: str) -> int:
    ask = post if content else get
    with pytest.raises(HTTPError) as error:
        ask(address, *content, **headers)
    return error.value.code


def test_what_the_page_asks_and_takes(page: str, takes: ClipSet, tmp_path: Path) -> None:
    assert b"score one clip" in get(page)
    task = json.loads(get(f"{page}/next?rater=Ann&mode=score"))
    assert task["left"] == 40
    assert set(task) == {"left", "clips", "text"}  # nothing tells where the clip is from
    (number,) = task["clips"]
    heard, _ = soundfile.read(io.BytesIO(get(f"{page}/clip/{number}")), dtype="float32")
    place = next(i for i, clip in enumerate(takes.clips) if np.array_equal(clip.audio, heard))
    post(f"{page}/label", {"rater": "Ann", "clips": [number], "score": 4})
    assert json.loads(get(f"{page}/next?rater=Ann&mode=score"))["left"] == 39
    assert json.loads(get(f"{page}/next?rater=Bob&mode=score"))["left"] == 40
    task = json.loads(get(f"{page}/next?rater=Ann&mode=choice"))
    assert task["left"] == 5
    post(f"{page}/label", {"rater": "Ann", "clips": task["clips"], "choice": "other"})
    first, second = read_labels(tmp_path / "labels.csv", takes.ids)
    assert first == Label(takes.ids[place], "Ann", score=4)
    assert second.choice == -1
    assert second.other is not None
    assert takes.groups[takes.ids.index(second.clip)] == takes.groups[takes.ids.index(second.other)]


def test_labelling_in_a_browser(page: str, browser: str, takes: ClipSet, tmp_path: Path) -> None:
    def until(condition: str, then: str = "") -> str:
        return (
            f"(async () => {{ while (!({condition})) await new Promise(requestAnimationFrame); {then} }})()"
        )

    begin = "document.getElementById('rater').value = 'Ann'; document.getElementById('begin').click()"
    clip = "document.querySelector('#players audio')"
    heard = until(clip, f"{clip}.muted = true; await {clip}.play()")
    four = "document.dispatchEvent(new KeyboardEvent('keydown', {key: '4'}))"
    left = "document.getElementById('left').textContent"
    pairs = "document.getElementById('mode').value = 'choice'; document.getElementById('mode').onchange()"
    second = "[...document.querySelectorAll('#answers button')].at(1).click()"
    scripts = [
        begin,
        heard,
        four,
        until(f"{left} === '39 left'"),
        pairs,
        second,
        until(f"{left} === '4 left'"),
    ]
    look(browser, page, *scripts)
    first, other = read_labels(tmp_path / "labels.csv", takes.ids)
    assert (first.rater, first.score, other.rater, other.choice) == ("Ann", 4, "Ann", -1)


def test_the_page_refuses_what_is_not_from_it(page: str, tmp_path: Path) -> None:
    assert status(page, host="evil.example") == 403
    assert status(f"{page}/clip/999") == 404
    assert status(f"{page}/label", {"rater": "x", "clips": [0], "score": 4}, kind="text/plain") == 400
    for answer in (
        {},
        {"rater": "x", "clips": [-1], "score": 4},
        {"rater": "x", "clips": [0], "score": 9},
        [],
    ):
        assert status(f"{page}/label", answer) == 400
    assert not (tmp_path / "labels.csv").exists()


def test_calibration(takes: ClipSet) -> None:
    """Two raters follow the first column to the letter; the second column is its reverse."""
    good = np.arange(40.0)
    labels = [
        Label(name, rater, score=value) for rater in "ab" for name, value in zip(takes.ids, good, strict=True)
    ]
    labels += [
        Label("clip-1", "a", other="clip-3", choice=-1),
        Label("clip-9", "b", other="clip-4", choice=1),
    ]
    labels += [
        Label("clip-4", "a", other="clip-9", choice=-1),
        Label("clip-0", "a", other="clip-1", choice=0),
    ]
    people = calibrate(takes, {"total": good, "bad": -good}, labels)
    assert (people.raters, people.labels, people.alpha) == (2, 84, 1)
    total, bad = people.calibrations
    assert total.spearman == total.within == pytest.approx(1)
    assert (total.low, total.high) == (pytest.approx(1), pytest.approx(1))
    assert total.kappa == pytest.approx(1)
    assert (total.choices, bad.choices, total.pairs) == (1, 0, 3)
    assert bad.spearman == pytest.approx(-1)
    assert [b.clips for b in total.bins] == [8] * 5
    assert [b.people for b in total.bins] == sorted(b.people for b in total.bins)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a,b\n", "needs the columns clip"),
        ("clip,rater,score\n", "holds no labels"),
        ("clip,rater,score\nclip-1,a,good\n", "line 2: score must be a number, not 'good'"),
        ("clip,rater,score\nclip-1,a,3\nclip-99,a,3\n", "line 3: no clip 'clip-99' in this audit"),
        ("clip,rater,other,choice\nclip-1,a,clip-2,left\n", "choice must be clip, other or same"),
    ],
)
def test_wrong_labels_are_one_line(content: str, says: str, takes: ClipSet, tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text(content)
    with pytest.raises(AuditError, match=says):
        read_labels(tmp_path / "l.csv", takes.ids)
