"""Who reads an output while it is written, how far they have got, and the writer's wait for them.

The one who has read most counts: others may fall behind and lose, the command is not held up for them.
"""

import asyncio
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

GRACE_S = 60.0  # how long the writer waits for somebody to come, or to come back


class Audience:
    """Of one output. One writer waits; any number read."""

    __slots__ = ("_dismissed", "_empty_since_s", "_grace_s", "_members", "_reached", "_waiter")

    def __init__(self, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._members = 0
        self._reached = 0
        self._empty_since_s = time.monotonic()
        self._dismissed = False
        self._waiter: asyncio.Future[None] | None = None

    @contextmanager
    def member(self, offset: int) -> Generator[Callable[[int], None]]:
        """Be one of them while inside; the function takes positions that were read up to."""
        self._members += 1
        self._reach(offset)
        try:
            yield self._reach
        finally:
            self._members -= 1
            self._empty_since_s = time.monotonic()
            self._wake()

    def _reach(self, offset: int) -> None:
        if offset > self._reached:
            self._reached = offset
            self._wake()

    def dismiss(self) -> None:
        self._dismissed = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def caught_up(self, offset: int) -> None:
        """Return when somebody has read up to `offset`, or nobody is there to wait for."""
        while self._reached < offset and not self._dismissed:
            left_s = None if self._members else self._empty_since_s + self._grace_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait_for(self._waiter, left_s)
            except TimeoutError:
                continue
            finally:
                self._waiter = None


def ignored(_position: int) -> None:
    """What a reader calls whom nobody waits for."""
