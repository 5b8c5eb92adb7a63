"""Lists that come in pages: asked for as they are gone through."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

from skerry.sdk._async.http import AsyncHttp, Params
from skerry.sdk._async.sandbox import AsyncSandbox
from skerry.sdk.requests import answer_of
from skerry.wire.base import Page
from skerry.wire.sandboxes import SandboxView

PAGE = 1000


class AsyncListing:
    """Sandboxes, newest first. Go through it, take `pages()`, or have `all()`: each time the server is asked anew.

    `info.env` of what it gives has its values redacted; `refresh` shows them.
    """

    def __init__(self, http: AsyncHttp, where: Params, limit: int | None) -> None:
        self._http = http
        self._where = where
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[AsyncSandbox]:
        async with aclosing(self.pages()) as pages:
            async for page in pages:
                for sandbox in page:
                    yield sandbox

    async def all(self) -> list[AsyncSandbox]:
        """All of them at once."""
        return [sandbox async for sandbox in self]

    async def pages(self) -> AsyncGenerator[list[AsyncSandbox]]:
        """Up to 1000 at a time, one call each."""
        left, before = self._limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            params = {**self._where, "limit": size, "before": before}
            page = answer_of(Page[SandboxView], await self._http.call("GET", "/v1/sandboxes", params=params))
            yield [AsyncSandbox(self._http, view) for view in page.data]
            left = None if left is None else left - len(page.data)
            before = page.next
            if before is None:
                return
