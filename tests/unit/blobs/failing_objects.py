"""Object stores that fail, lie or tell, around a real one."""

from collections.abc import Iterator

from skerry.blobs.objects import Objects
from skerry.model.capture import Blob
from skerry.model.errors import Unavailable


class WatchedObjects:
    """Passes all on and lists what was put. From the `fails_at`th put on it fails; `lies` spoils what is got."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.puts: list[str] = []
        self.got_bytes = 0
        self.fails_at: int | None = None
        self.lies = ""

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        if self.fails_at is not None and len(self.puts) >= self.fails_at:
            raise Unavailable("The object store cannot be used now: it was unplugged.")
        self.puts.append(key)
        return self._objects.put(key, data, create_only=create_only)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        data = self._objects.get(key, start, length)
        self.got_bytes += len(data)
        return data[:-1] if self.lies and self.lies in key else data

    def delete(self, key: str) -> None:
        self._objects.delete(key)

    def list(self, prefix: str) -> Iterator[Blob]:
        return self._objects.list(prefix)
