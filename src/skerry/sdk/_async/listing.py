"""Lists that come in pages: asked for as they are gone through."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Generic, TypeVar

from skerry.sdk._async.http import AsyncHttp, Params

PAGE = 1000

Item = TypeVar("Item")
Read = Callable[[bytes], tuple[list[Item], str | None]]
"""What an answer holds, and where the next page begins."""


class AsyncListing(Generic[Item]):
    """Newest first. Go through it, take `pages()`, or have `all()`: each time the server is asked anew.

    `info.env` of what it gives has its values redacted; `refresh` shows them.
    """

    def __init__(self, http: AsyncHttp, path: str, read: Read[Item], where: Params, limit: int | None) -> None:
        self._http = http
        self._path = path
        self._read = read
        self._where = where
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[Item]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for one in page:
                    yield one

    async def all(self) -> list[Item]:
        """All of them at once."""
        return [one async for one in self]

    async def pages(self) -> AsyncGenerator[list[Item]]:
        """Up to 1000 at a time, one call each."""
        left, before = self._limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            params = {**self._where, "limit": size, "before": before}
            page, before = self._read(await self._http.call("GET", self._path, params=params))
            yield page
            left = None if left is None else left - len(page)
            if before is None:
                return
