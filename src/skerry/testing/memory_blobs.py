"""An object store in memory, for tests of what stands on one. Passes the same suite as the real ones."""

from collections.abc import AsyncIterator

from skerry.blobs.objects import checked_key, checked_prefix
from skerry.clock import SystemClock
from skerry.model.capture import Blob
from skerry.model.errors import NotFound, Unavailable
from skerry.seams import Clock


class MemoryBlobs:
    """Implements `seams.Blobs`. While `down` has words, every call fails with them."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._objects: dict[str, tuple[bytes, Blob]] = {}
        self.down = ""

    async def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        self._check()
        if create_only and key in self._objects:
            return False
        self._objects[checked_key(key)] = bytes(data), Blob(key, len(data), self._clock.now())
        return True

    async def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._check()
        if checked_key(key) not in self._objects:
            raise NotFound(f"The object store has no {key}.")
        data = self._objects[key][0]
        return data[start : len(data) if length is None else start + length]

    async def delete(self, key: str) -> None:
        self._check()
        self._objects.pop(checked_key(key), None)

    async def list(self, prefix: str) -> AsyncIterator[Blob]:
        self._check()
        below = checked_prefix(prefix)
        for key, (_, blob) in list(self._objects.items()):
            if not below or key.startswith(below + "/"):
                yield blob

    def _check(self) -> None:
        if self.down:
            raise Unavailable(self.down)
