"""Tells whoever watches that a sandbox has died. Best effort: a watcher that falls far behind misses some."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

from skerry.model.sandbox import Observed

MAX_BEHIND = 1024  # deaths that are kept for a watcher; the list of sandboxes is the truth


class Deaths:
    """The watchers of one node."""

    def __init__(self) -> None:
        self._watchers: set[asyncio.Queue[Observed]] = set()

    def tell(self, seen: Observed) -> None:
        for queue in self._watchers:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(seen)

    async def watch(self) -> AsyncGenerator[Observed]:
        """Deaths from the first step of the iteration on, until it is closed."""
        queue: asyncio.Queue[Observed] = asyncio.Queue(MAX_BEHIND)
        self._watchers.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._watchers.discard(queue)
