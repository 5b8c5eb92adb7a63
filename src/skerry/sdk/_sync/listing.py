"""Lists that come in pages: asked for as they are gone through."""

from collections.abc import Generator, Iterator
from contextlib import closing

from skerry.sdk._sync.http import Http, Params
from skerry.sdk._sync.sandbox import Sandbox
from skerry.sdk.requests import answer_of
from skerry.wire.base import Page
from skerry.wire.sandboxes import SandboxView

PAGE = 1000


class Listing:
    """Sandboxes, newest first. Go through it, take `pages()`, or have `all()`: each time the server is asked anew.

    `info.env` of what it gives has its values redacted; `refresh` shows them.
    """

    def __init__(self, http: Http, where: Params, limit: int | None) -> None:
        self._http = http
        self._where = where
        self._limit = limit

    def __iter__(self) -> Iterator[Sandbox]:
        with closing(self.pages()) as pages:
            for page in pages:
                for sandbox in page:
                    yield sandbox

    def all(self) -> list[Sandbox]:
        """All of them at once."""
        return [sandbox for sandbox in self]

    def pages(self) -> Generator[list[Sandbox]]:
        """Up to 1000 at a time, one call each."""
        left, before = self._limit, None
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            params = {**self._where, "limit": size, "before": before}
            page = answer_of(Page[SandboxView], self._http.call("GET", "/v1/sandboxes", params=params))
            yield [Sandbox(self._http, view) for view in page.data]
            left = None if left is None else left - len(page.data)
            before = page.next
            if before is None:
                return
