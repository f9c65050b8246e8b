"""Work that goes on beside the caller, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, takewhile
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


def one_thread(name: str) -> ThreadPoolExecutor:
    """An executor with a single thread, which uses the caller's GPU: a new thread begins with the first."""
    if torch.cuda.is_available():
        return ThreadPoolExecutor(1, name, torch.cuda.set_device, (torch.cuda.current_device(),))
    return ThreadPoolExecutor(1, name)


@dataclass(frozen=True)
class Batch(Generic[T]):
    """``items`` of a source, and the batch that follows; the last one is empty."""

    items: list[T]
    following: Future[Batch[T]]


@contextmanager
def pulled(source: Iterable[T], size: int) -> Iterator[Future[Batch[T]]]:
    """``source`` in batches of ``size``, taken by a thread of its own, which never waits for the reader.

    Gives the first batch to come. What the source raises, the batch's future holds. Leaving the context stops
    the source at its next item, and waits for that.
    """
    left = threading.Event()
    first: Future[Batch[T]] = Future()

    def pull() -> None:
        items = takewhile(lambda _: not left.is_set(), source)
        coming, more = first, True
        try:
            while more:
                batch, following = list(islice(items, size)), Future[Batch[T]]()
                coming.set_result(Batch(batch, following))
                coming, more = following, bool(batch)
        except BaseException as error:  # noqa: BLE001 - raised again where the batch is read
            coming.set_exception(error)
        finally:
            if isinstance(source, Generator):
                source.close()

    with one_thread("source") as thread:
        thread.submit(pull)
        try:
            yield first
        finally:
            left.set()
