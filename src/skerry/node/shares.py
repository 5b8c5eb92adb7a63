"""Turns at something scarce, shared between those who want it: nobody can have all of it, whatever he asks for."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class Shares:
    """`total` turns at once, of which one name has `each` at most. Who waits is served in order, `each` a name."""

    def __init__(self, total: int, each: int) -> None:
        self._total = asyncio.Semaphore(total)
        self._each = each
        self._own: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, name: str) -> AsyncGenerator[None]:
        own = self._own.setdefault(name, asyncio.Semaphore(self._each))
        async with own, self._total:
            yield
