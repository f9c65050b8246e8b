"""Schedulers that never share a cache block holding generated frames between requests.

vLLM hashes a block by its token ids, and a frame's token id is its first code only. Two samples with equal
first codes and different others would share a block after a preemption, and every later frame of one of
them would be conditioned on the other's. Here such a block's hash includes the request's own id; blocks of
prompt tokens are shared as ever.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

Hasher = Callable[[Request], list[BlockHash]]


def private_hasher(hasher: Hasher, block_size: int) -> Hasher:
    """``hasher``, with the request's id mixed into each block that reaches beyond the prompt."""

    def hashes(request: Request) -> list[BlockHash]:
        first = len(request.block_hashes)
        shared = request.num_prompt_tokens // block_size
        own = request.request_id.encode()
        return [
            block if number < shared else BlockHash(hashlib.sha256(block + own).digest())
            for number, block in enumerate(hasher(request), first)
        ]

    return hashes


class _PrivateBlocks(Scheduler):
    def add_request(self, request: Request) -> None:
        if request._block_hasher is not None:
            request._block_hasher = private_hasher(request._block_hasher, self.hash_block_size)
        super().add_request(request)


class DualScheduler(_PrivateBlocks):
    """For runners that schedule a step after the last one's tokens are known (CPU)."""


class DualAsyncScheduler(_PrivateBlocks, AsyncScheduler):
    """For runners that schedule ahead (GPU)."""
