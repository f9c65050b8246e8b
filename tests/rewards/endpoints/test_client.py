"""The client against a real server that fails in every way a server can."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rewards.endpoints.cache import ResponseCache
from rewards.endpoints.client import Endpoint
from rewards.endpoints.request import Request
from rewards.node import NodeError

KEY = "test-key-0123456789"


def endpoint(base_url: str, **options: Any) -> Endpoint:
    defaults: dict[str, Any] = {
        "key_env": None,
        "timeout_s": 20.0,
        "deadline_s": 60.0,
        "retries": 0,
        "concurrency": 8,
        "cache": None,
    }
    return Endpoint(base_url=base_url, **{**defaults, **options})


def chat(text: str = "hello", **options: Any) -> Request:
    return Request("chat", {"model": "m", "messages": [{"role": "user", "content": text}]}, **options)


def in_turn(*replies: Any) -> Callable[[Any], Any]:
    """The replies one after the other, the last one for ever."""
    left = list(replies)
    return lambda asked: left.pop(0) if len(left) > 1 else left[0]


def in_time_unless_asked_to_hang(loopback: Any) -> Callable[[Any], Any]:
    hang, answer = loopback.json({}), loopback.json({})
    hang.hang = True
    return lambda asked: hang if asked.body["messages"][0]["content"] == "hang" else answer


def reason(answer: Any) -> str:
    assert isinstance(answer, NodeError), answer
    return str(answer)


def test_answers_are_in_the_order_of_the_requests(loopback: Any) -> None:
    loopback.reply = lambda asked: loopback.json({"echo": asked.body["messages"][0]["content"]})
    texts = [str(i) for i in range(20)]
    answers = endpoint(loopback.base_url, concurrency=3).ask([chat(text) for text in texts])
    assert [answer["echo"] for answer in answers] == texts
    assert {asked.path for asked in loopback.asked} == {"/v1/chat/completions"}
    assert loopback.asked[0].body["model"] == "m"
    assert endpoint(loopback.base_url).ask([]) == []


def test_concurrency_is_bounded(loopback: Any) -> None:
    lock, now, most = threading.Lock(), 0, 0
    full = threading.Barrier(3)

    def reply(asked: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        full.wait(30)  # three are in the server at once, or this fails
        with lock:
            now -= 1
        return loopback.json({})

    loopback.reply = reply
    answers = endpoint(loopback.base_url, concurrency=3, timeout_s=50.0).ask([chat(str(i)) for i in range(9)])
    assert answers == [{}] * 9
    assert most == 3


@pytest.mark.parametrize("status", [500, 503, 429, 408])
def test_faults_that_pass_are_tried_again(loopback: Any, status: int) -> None:
    loopback.reply = in_turn(loopback.json({}, status), loopback.json({"ok": 1}))
    assert endpoint(loopback.base_url, retries=1).ask([chat()]) == [{"ok": 1}]
    assert len(loopback.asked) == 2


def test_tries_are_bounded(loopback: Any) -> None:
    loopback.reply = in_turn(loopback.json({"error": {"message": "overloaded"}}, 500))
    (answer,) = endpoint(loopback.base_url, retries=2).ask([chat()])
    assert "500" in reason(answer)
    assert "overloaded" in reason(answer)
    assert "3 tries" in reason(answer)
    assert len(loopback.asked) == 3


@pytest.mark.parametrize("status", [400, 401, 404, 422])
def test_what_is_wrong_for_good_is_asked_once(loopback: Any, status: int) -> None:
    loopback.reply = in_turn(loopback.json({"error": {"message": "no such model"}}, status))
    (answer,) = endpoint(loopback.base_url, retries=5).ask([chat()])
    assert f"the server answers {status}" in reason(answer)
    assert len(loopback.asked) == 1


def test_retry_after_is_kept_to_by_all(loopback: Any) -> None:
    loopback.reply = in_turn(loopback.json({}, 429, **{"retry-after": "1"}), loopback.json({"ok": 1}))
    answers = endpoint(loopback.base_url, retries=1, concurrency=1).ask([chat("a"), chat("b")])
    assert answers == [{"ok": 1}] * 2
    assert [asked.body["messages"][0]["content"] for asked in loopback.asked] == ["a", "a", "b"]


@pytest.mark.parametrize(
    "headers",
    [
        {"retry-after": "3600"},
        {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1h0m0s"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "3600s"},
    ],
)
def test_a_wait_beyond_the_deadline_is_given_up_at_once(loopback: Any, headers: dict[str, str]) -> None:
    loopback.reply = in_turn(loopback.json({}, 429, **headers))
    answers = endpoint(loopback.base_url, retries=5, concurrency=1).ask([chat("a"), chat("b")])
    assert all("beyond the node's deadline" in reason(answer) for answer in answers)
    assert len(loopback.asked) == 1


def test_quota_left_holds_nobody_back(loopback: Any) -> None:
    left = {"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "1h"}
    loopback.reply = in_turn(loopback.json({"ok": 1}, 200, **left))
    assert endpoint(loopback.base_url, concurrency=1).ask([chat("a"), chat("b")]) == [{"ok": 1}] * 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is empty"),
        (b"  \n", "is empty"),
        (b"<html>502</html>", "isn't JSON"),
        (b'{"choices": [', "isn't JSON"),
        (b"\xff\xfe", "isn't JSON"),
        (b"[1]", "isn't a JSON object"),
        (b"85", "isn't a JSON object"),
    ],
)
def test_bodies_that_are_no_answer(loopback: Any, body: bytes, why: str) -> None:
    reply = loopback.json({})
    reply.body = body
    loopback.reply = lambda asked: reply
    assert why in reason(endpoint(loopback.base_url).ask([chat()])[0])


def test_a_reset_in_mid_body(loopback: Any) -> None:
    cut = loopback.json({"padding": "x" * 100_000})
    cut.reset = True
    loopback.reply = in_turn(cut, loopback.json({"ok": 1}), cut)
    tries = endpoint(loopback.base_url, retries=1)
    assert tries.ask([chat()]) == [{"ok": 1}]
    assert "the connection failed" in reason(tries.ask([chat()])[0])


def test_a_hang_ends_at_the_time_out(loopback: Any) -> None:
    loopback.reply = in_time_unless_asked_to_hang(loopback)
    answers = endpoint(loopback.base_url, timeout_s=5.0).ask([chat("hang"), chat("go")])
    assert "didn't answer within 5 s" in reason(answers[0])
    assert answers[1] == {}


def test_a_hang_ends_at_the_deadline(loopback: Any) -> None:
    loopback.reply = in_time_unless_asked_to_hang(loopback)
    answers = endpoint(loopback.base_url, deadline_s=5.0, retries=5).ask([chat("hang"), chat("go")])
    assert "deadline of 5 s" in reason(answers[0])
    assert answers[1] == {}


def test_nobody_listens() -> None:
    (answer,) = endpoint("http://127.0.0.1:9/v1").ask([chat()])
    assert "the connection failed" in reason(answer)


def test_from_within_an_event_loop(loopback: Any) -> None:
    async def main() -> Any:
        return endpoint(loopback.base_url).ask([chat()])

    loopback.reply = in_turn(loopback.json({"ok": 1}))
    assert asyncio.run(main()) == [{"ok": 1}]


def test_the_key_goes_to_the_server_and_nowhere_else(
    loopback: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUDGE_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "another-key-0123456789")
    caplog.set_level(logging.DEBUG)
    echo = {"error": {"message": f"wrong key {KEY}"}}
    loopback.reply = in_turn(loopback.json(echo, 401), loopback.json({"echo": KEY}))
    asked = endpoint(loopback.base_url, key_env="JUDGE_KEY", cache=ResponseCache(tmp_path))
    assert "wrong key [key]" in reason(asked.ask([chat()])[0])
    assert asked.ask([chat()]) == [{"echo": "[key]"}]
    assert [a.headers["authorization"] for a in loopback.asked] == [f"Bearer {KEY}"] * 2
    assert caplog.records
    assert KEY not in caplog.text
    assert KEY not in repr(asked)
    assert all(KEY not in path.read_text() for path in tmp_path.rglob("*.json"))
    endpoint(loopback.base_url).ask([chat()])
    assert loopback.asked[-1].headers["authorization"] == "Bearer none"


# --- cache


def test_a_question_is_asked_once(loopback: Any, tmp_path: Path) -> None:
    loopback.reply = in_turn(loopback.json({"n": 1}), loopback.json({"n": 2}), loopback.json({"n": 3}))
    cached = endpoint(loopback.base_url, cache=ResponseCache(tmp_path), concurrency=1)
    assert cached.ask([chat("a"), chat("b")]) == [{"n": 1}, {"n": 2}]
    assert cached.ask([chat("b"), chat("a"), chat("a", repeat=1)]) == [{"n": 2}, {"n": 1}, {"n": 3}]
    assert len(loopback.asked) == 3
    elsewhere = endpoint("http://127.0.0.1:9/v1", cache=ResponseCache(tmp_path))
    assert elsewhere.ask([chat("a")]) == [{"n": 1}]


def test_failures_are_not_kept(loopback: Any, tmp_path: Path) -> None:
    loopback.reply = in_turn(loopback.json({}, 500), loopback.json({"ok": 1}))
    cached = endpoint(loopback.base_url, cache=ResponseCache(tmp_path))
    assert "500" in reason(cached.ask([chat()])[0])
    assert cached.ask([chat()]) == [{"ok": 1}]


def test_what_makes_a_question() -> None:
    def transcription(model: str, audio: bytes) -> Request:
        return Request("transcription", {"model": model}, audio)

    questions = [
        chat("a"),
        chat("b"),
        chat("a", repeat=1),
        transcription("m", b"1"),
        transcription("m", b"2"),
        transcription("n", b"1"),
        Request("chat", {"model": "m", "messages": [{"content": "a", "role": "user"}], "temperature": 1.0}),
    ]
    assert len({question.key() for question in questions}) == len(questions)
    assert chat("a").key() == chat("a").key()


def test_a_damaged_answer_is_replaced(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, key = ResponseCache(tmp_path), chat().key()
    assert cache.get(key) is None
    cache.put(key, {"text": "é"})
    assert cache.get(key) == {"text": "é"}
    (path,) = tmp_path.rglob("*.json")
    for damaged in (b"", b'{"text', b"[1]", b"\xff"):
        path.write_bytes(damaged)
        assert cache.get(key) is None
    assert "damaged" in caplog.text
    cache.put(key, {"text": "b"})
    assert cache.get(key) == {"text": "b"}
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == [path.name]


def test_many_writers_one_answer(tmp_path: Path) -> None:
    cache, key = ResponseCache(tmp_path), chat().key()
    bodies = [{"n": n, "padding": "x" * 100_000} for n in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda body: cache.put(key, body), bodies))
        seen = list(pool.map(lambda _: cache.get(key), range(16)))
    assert all(body in bodies for body in seen)
    assert len(json.dumps(cache.get(key))) > 100_000
