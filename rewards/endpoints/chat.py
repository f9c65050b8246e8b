"""Chat completions: making the request, and taking the text from the answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewards.endpoints.node import EndpointNode
from rewards.endpoints.request import Body, Request
from rewards.node import NodeError, option


@dataclass(kw_only=True)
class ChatNode(EndpointNode):
    """Options of a node that asks a chat model. Those that are null aren't sent: some servers refuse them."""

    temperature: float | None = option(0.0, "of the model's sampling", at_least=0)
    max_tokens: int | None = option(1024, "an answer cut there is missing", at_least=1)
    seed: int | None = option(0, "of the model's sampling; repeats count up from it", at_least=0)

    def request(
        self, messages: Sequence[Mapping[str, Any]], repeat: int = 0, response_format: Any = None
    ) -> Request:
        """The ``repeat``-th asking of ``messages``."""
        options = {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": None if self.seed is None else self.seed + repeat,
            "response_format": response_format,
        }
        sent = {name: value for name, value in options.items() if value is not None}
        return Request("chat", {"model": self.model, "messages": list(messages), **sent}, repeat=repeat)


def answer_text(body: Body | NodeError) -> str:
    """The whole text that the model answered. Raises `NodeError` where there is none, or a part of one."""
    if isinstance(body, NodeError):
        raise body
    try:
        (choice,) = body["choices"]
        text, reason = choice["message"].get("content"), choice.get("finish_reason")
        refusal = choice["message"].get("refusal")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise NodeError("the server's answer isn't a chat completion with one choice") from error
    if refusal:
        raise NodeError("the model refused to answer")
    if reason != "stop":
        raise NodeError(f"the model's answer isn't complete: finish_reason is {reason}, not stop")
    if not isinstance(text, str) or not text.strip():
        raise NodeError("the model's answer is empty")
    return text.strip()


def served_model(bodies: Sequence[Body | NodeError]) -> str | None:
    """The model that answered, by its own word: a name may stand for another model tomorrow."""
    names = {body.get("model") for body in bodies if isinstance(body, dict)}
    return ", ".join(sorted(name for name in names if isinstance(name, str))) or None
