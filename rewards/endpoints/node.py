"""What all nodes that ask an endpoint have in common: their options, and questions in groups."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlsplit

from rewards.endpoints.cache import ResponseCache
from rewards.endpoints.request import Body, Request
from rewards.node import Node, NodeError, option
from rl.errors import ConfigError


@dataclass(kw_only=True)
class EndpointNode(Node):
    """Options of a node that asks an OpenAI-compatible server."""

    base_url: str = field(metadata={"help": "of the server, such as http://localhost:8000/v1"})
    model: str = field(metadata={"help": "the model's name, as the server lists it"})
    key_env: str | None = option(None, "environment variable that holds the key; null: none is needed")
    timeout_s: float = option(60.0, "seconds for one try", above=0)
    deadline_s: float = option(600.0, "seconds for a batch; what isn't answered by then is missing", above=0)
    retries: int = option(4, "further tries after faults that may pass", at_least=0, at_most=20)
    concurrency: int = option(16, "requests under way at once", at_least=1)
    cache: str | None = option("~/.cache/auralign/responses", "folder of past answers; null: ask always")

    requires: ClassVar[tuple[str, str]] = ("openai", "judges")

    def check(self) -> None:
        url = urlsplit(self.base_url)
        if url.username is not None or url.password is not None or url.query:
            raise ConfigError("base_url must not hold a key or password; name its variable in key_env")
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ConfigError(f"base_url {self.base_url} is no http or https address with a host")
        if self.key_env is None:
            return
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", self.key_env):
            raise ConfigError("key_env must be the name of an environment variable, not the key itself")
        if not os.environ.get(self.key_env):
            raise ConfigError(f"key_env: the variable {self.key_env} isn't set; export it with the key")

    def ask(self, groups: Sequence[Sequence[Request]]) -> list[list[Body | NodeError]]:
        """The answers to groups of requests, in the same groups."""
        from rewards.endpoints.client import Endpoint  # imports openai, which a configuration may do without

        endpoint = Endpoint(
            base_url=self.base_url,
            key_env=self.key_env,
            timeout_s=self.timeout_s,
            deadline_s=self.deadline_s,
            retries=self.retries,
            concurrency=self.concurrency,
            cache=ResponseCache(Path(self.cache).expanduser()) if self.cache else None,
        )
        answers = iter(endpoint.ask(list(itertools.chain.from_iterable(groups))))
        return [list(itertools.islice(answers, len(group))) for group in groups]
