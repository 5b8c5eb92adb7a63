"""`Blobs` on an event loop, over a blocking store. Apart from that one, because workers have no event loop to load."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from itertools import islice

from skerry.blobs.objects import Objects
from skerry.model.capture import Blob

_PAGE = 1000


class Threaded:
    """Implements `Blobs`: each call in a thread of its own, so that no event loop waits for a disk or a network."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        return await asyncio.to_thread(self._objects.put, key, data, create_only=create_only)

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return await asyncio.to_thread(self._objects.get, key, start, length)

    async def delete(self, key: str) -> None:
        await asyncio.to_thread(self._objects.delete, key)

    async def list(self, prefix: str) -> AsyncIterator[Blob]:
        found = self._objects.list(prefix)
        while page := await asyncio.to_thread(_next, found):
            for blob in page:
                yield blob


def _next(found: Iterator[Blob]) -> Sequence[Blob]:
    return list(islice(found, _PAGE))
