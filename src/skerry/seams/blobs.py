"""An object store: whole objects under keys. What is in them is its callers' business."""

from collections.abc import AsyncIterator
from typing import Protocol

from skerry.model.capture import Blob


class Blobs(Protocol):
    """An object store, or a part of one below a prefix. Keys are slash-separated names of plain ASCII.

    Every call may raise Unavailable: the store cannot be used now; the message has its words, and no credentials.
    """

    async def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        """Write an object, whole or not at all. With `create_only`: False, and nothing written, where one is."""
        ...

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """An object, or `length` bytes of it from `start` on.

        Raises:
            NotFound: There is none.
        """
        ...

    async def delete(self, key: str) -> None:
        """Not there: success."""
        ...

    def list(self, prefix: str) -> AsyncIterator[Blob]:
        """All objects whose key begins with `prefix`, a whole name or more."""
        ...
