"""Many questions to one server at once, through the `openai` client."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import openai
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from rewards.endpoints.cache import ResponseCache
from rewards.endpoints.errors import AskError, TryAgain
from rewards.endpoints.pace import Pace
from rewards.endpoints.request import Body, Request
from rewards.node import NodeError

_TRANSIENT = (408, 409, 429)
"""Statuses worth another try, beside those from 500 on."""
_JITTER = random.SystemRandom()
_SECRET = 8
"""Characters from which a key is one: shorter ones are placeholders, and may be parts of common words."""


@dataclass(frozen=True)
class Endpoint:
    """A server at ``base_url``, and how it is asked.

    ``key_env`` names the environment variable with its key; the key itself is never kept. A try takes
    ``timeout_s`` at most and is repeated up to ``retries`` times after faults that may pass, with growing,
    randomly shortened pauses; ``deadline_s`` bounds a whole `ask`. Up to ``concurrency`` requests are under
    way at once. Answers are looked up in ``cache``, and kept there.
    """

    base_url: str
    key_env: str | None
    timeout_s: float
    deadline_s: float
    retries: int
    concurrency: int
    cache: ResponseCache | None

    def ask(self, requests: Sequence[Request]) -> list[Body | NodeError]:
        """The answer to each request, or why there is none."""
        found: dict[int, Body | NodeError] = {}
        if self.cache:
            stored = {i: self.cache.get(request.key()) for i, request in enumerate(requests)}
            found.update((i, body) for i, body in stored.items() if body is not None)
        asked = [i for i in range(len(requests)) if i not in found]
        if asked:
            found.update(zip(asked, _run(self._ask_all([requests[i] for i in asked])), strict=True))
        return [found[i] for i in range(len(requests))]

    async def _ask_all(self, requests: Sequence[Request]) -> list[Body | NodeError]:
        key = os.environ.get(self.key_env, "") if self.key_env else ""
        pace = Pace(asyncio.get_running_loop().time() + self.deadline_s)
        slots = asyncio.Semaphore(self.concurrency)
        async with openai.AsyncOpenAI(
            base_url=self.base_url, api_key=key or "none", timeout=self.timeout_s, max_retries=0
        ) as client:
            asking = [self._ask(client, key, pace, slots, request) for request in requests]
            tasks = [asyncio.create_task(question) for question in asking]
            _, late = await asyncio.wait(tasks, timeout=self.deadline_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        missed = NodeError(f"no answer within the node's deadline of {self.deadline_s:g} s")
        return [missed if task in late else task.result() for task in tasks]

    async def _ask(
        self, client: openai.AsyncOpenAI, key: str, pace: Pace, slots: asyncio.Semaphore, request: Request
    ) -> Body | NodeError:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(self.retries + 1),
            wait=_pause,
            retry=retry_if_exception_type(TryAgain),
            reraise=True,
        )
        async with slots:
            try:
                body: Body = await retrying(self._try, client, key, pace, request)
            except AskError as error:
                tries = retrying.statistics["attempt_number"]
                return NodeError(f"{error}{f' ({tries} tries)' if tries > 1 else ''}")
        if self.cache:
            self.cache.put(request.key(), body)
        return body

    async def _try(self, client: openai.AsyncOpenAI, key: str, pace: Pace, request: Request) -> Body:
        await pace.ready()
        try:
            async with asyncio.timeout(self.timeout_s):
                response = await _send(client, request)
        except (TimeoutError, openai.APITimeoutError) as error:
            raise TryAgain(f"the server didn't answer within {self.timeout_s:g} s") from error
        except openai.APIConnectionError as error:
            raise TryAgain(f"the connection failed: {_short(error.__cause__ or error, key)}") from error
        except openai.APIStatusError as error:
            pace.note(error.response.headers)
            status = error.status_code
            kind = TryAgain if status in _TRANSIENT or status >= 500 else AskError
            raise kind(f"the server answers {status}: {_short(error, key)}") from error
        pace.note(response.headers)
        return _decode(_without(key, response.text))


async def _send(client: openai.AsyncOpenAI, request: Request) -> Any:
    if request.route == "chat":
        return await client.chat.completions.with_raw_response.create(**request.parameters)
    file = ("clip.wav", request.audio, "audio/wav")
    return await client.audio.transcriptions.with_raw_response.create(file=file, **request.parameters)


def _decode(text: str) -> Body:
    if not text.strip():
        raise TryAgain("the body of the server's answer is empty")
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TryAgain("the body of the server's answer isn't JSON") from error
    if not isinstance(body, dict):
        raise TryAgain("the body of the server's answer isn't a JSON object")
    return body


def _pause(state: RetryCallState) -> float:
    """Seconds until the next try: half a second, doubled each time up to 8 s, shortened by up to a half."""
    return min(2.0 ** (state.attempt_number - 2), 8.0) * _JITTER.uniform(0.5, 1.0)


def _short(error: BaseException, key: str) -> str:
    """An error on one line of readable length, without the key that a server may have echoed."""
    text = " ".join(_without(key, str(error)).split()) or type(error).__name__
    return text if len(text) <= 200 else f"{text[:197]}..."


def _without(key: str, text: str) -> str:
    return text.replace(key, "[key]") if len(key) >= _SECRET else text


def _run(answers: Any) -> list[Body | NodeError]:
    """The result of a coroutine, from plain code as well as from within a running event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(answers)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, answers).result()
