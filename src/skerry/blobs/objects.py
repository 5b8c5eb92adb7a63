"""The blocking face of an object store, as the worker's threads use it, and the rule for keys.

`Blobs` is the same on an event loop; `threaded.py` is all that lies between. The contract is the seam's.
"""

import re
from collections.abc import Iterator
from typing import Protocol

from skerry.blobs.limits import damaged
from skerry.model.capture import Blob
from skerry.model.errors import Invalid

_KEY = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9_][A-Za-z0-9._-]{0,127}){0,7}")


class Objects(Protocol):
    """`skerry.seams.blobs.Blobs`, blocking. May be called from several threads at once."""

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool: ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes: ...

    def delete(self, key: str) -> None: ...

    def list(self, prefix: str) -> Iterator[Blob]: ...


def checked_key(key: str) -> str:
    """`key`, if it is one: names of letters, digits, `._-`, none of which begins with a dot or a dash, eight at most.

    Raises:
        Invalid: It is not.
    """
    if _KEY.fullmatch(key) is None:
        raise Invalid(f"{key[:80]!a} is not a key of an object: names of A-Z a-z 0-9 . _ - with slashes between.")
    return key


def checked_prefix(prefix: str) -> str:
    """A key, with or without a slash at its end, or nothing; without that slash. Raises Invalid."""
    name = prefix.removesuffix("/")
    return checked_key(name) if name else ""


def get_bounded(objects: Objects, key: str, most: int, what: str) -> bytes:
    """A whole object, of a store that may have been tampered with: its size decides over no memory of ours.

    Raises:
        Refused: It is larger than `most`. NotFound, Unavailable: as `get`.
    """
    data = objects.get(key, 0, most + 1)
    if len(data) > most:
        raise damaged(f"{what} is larger than any")
    return data
