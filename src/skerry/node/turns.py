"""Blocking work in threads, in turns: what is done to one thing is done in the order in which it was asked for.

A cancelled caller's work is done to its end all the same; the next one for that thing waits for it.
"""

import asyncio
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from skerry.model.errors import Refused

_THREADS = 8

T = TypeVar("T")


class Turns:
    """A few threads. What the kernel refuses is raised as Refused."""

    def __init__(self, name: str) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=name)
        self._last: dict[str, Future[Any]] = {}

    async def run(self, work: Callable[[], T]) -> T:
        """In a thread, in no order."""
        return await self._result(self._threads.submit(work))

    async def alone(self, key: str, work: Callable[[], T]) -> T:
        """In a thread, in the order of the calls for this key, those that were cancelled included."""
        earlier = self._last.get(key)

        def in_turn() -> T:
            if earlier is not None:
                futures.wait([earlier])  # it was submitted before us: it runs, or has run
            return work()

        turn = self._last[key] = self._threads.submit(in_turn)
        try:
            return await self._result(turn)
        finally:
            if turn.done() and self._last.get(key) is turn:
                del self._last[key]

    async def _result(self, future: Future[T]) -> T:
        try:
            return await asyncio.wrap_future(future)
        except OSError as error:
            raise Refused(f"This host's kernel refused: {error}.") from error
