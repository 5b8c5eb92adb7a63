"""Which chunks a vault has and where they lie: the indices of its packs, kept in a local cache.

A chunk counts as known only while its pack is listed. The cache is a hint: what does not open is fetched again.
"""

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from skerry.blobs.keys import Keys
from skerry.blobs.limits import Limits, damaged
from skerry.blobs.objects import Objects, get_bounded
from skerry.blobs.packs import INDEX_MOST, Index, decode_index
from skerry.model.errors import NotFound, Refused

# A place as one integer, because a million of them are held: pack, segment, offset within it, length.
_LENGTH_BITS, _OFFSET_BITS, _SEGMENT_BITS = 22, 22, 12
_LENGTH = (1 << _LENGTH_BITS) - 1
_PACK_SHIFT = _LENGTH_BITS + _OFFSET_BITS + _SEGMENT_BITS


class Spot(NamedTuple):
    """Where a chunk lies."""

    pack: int
    segment: int
    offset: int
    length: int


def pack_of(place: int) -> int:
    return place >> _PACK_SHIFT


def length_of(place: int) -> int:
    return place & _LENGTH


def spot(place: int) -> Spot:
    return Spot(
        place >> _PACK_SHIFT,
        place >> (_LENGTH_BITS + _OFFSET_BITS) & ((1 << _SEGMENT_BITS) - 1),
        place >> _LENGTH_BITS & ((1 << _OFFSET_BITS) - 1),
        place & _LENGTH,
    )


def place(pack: int, segment: int, offset: int, length: int) -> int:
    return ((pack << _SEGMENT_BITS | segment) << _OFFSET_BITS | offset) << _LENGTH_BITS | length


class Catalogue:
    """The chunks of one vault that are known, by id. `places` maps to integers that `spot` takes apart.

    Not for several threads at once.
    """

    def __init__(self, objects: Objects, keys: Keys, cache: Path) -> None:
        self._objects = objects
        self._keys = keys
        self._cache = cache / keys.vault_id
        self.places: dict[bytes, int] = {}
        self.packs: list[str] = []
        self.segments: list[Sequence[tuple[int, int, int]]] = []  # a pack: offset, stored, plain of each segment

    def load_all(self, limits: Limits) -> None:
        """Learn all packs that are listed, the newest first, until there are as many chunks as are held at most."""
        packs = listed(self._objects, self._keys.vault_id)
        indices = listed(self._objects, self._keys.vault_id, "indices")
        self._forget_others(set(packs))
        for name in sorted(packs, key=lambda one: packs[one], reverse=True):
            if name not in indices or len(self.places) >= limits.known_chunks:
                continue
            # A damaged index costs space, and no archive: its chunks are stored anew.
            with contextlib.suppress(NotFound, Refused):
                self._learn(name, self._index(name))

    def load(self, packs: Iterable[str]) -> None:
        """Learn these packs.

        Raises:
            Refused: One has no index, or a damaged one.
        """
        for name in packs:
            try:
                self._learn(name, self._index(name))
            except NotFound:
                raise damaged(f"pack {name} has no index") from None

    def add_pack(self, name: str) -> int:
        """Begin a pack of one's own; its number. Its chunks are put into `places` by whoever makes it."""
        self.packs.append(name)
        self.segments.append(())
        return len(self.packs) - 1

    def keep_index(self, pack: str, sealed: bytes) -> None:
        """Have an index in the cache. Fails silently: it is only a cache."""
        with contextlib.suppress(OSError):
            self._cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = self._cache / f".{os.urandom(8).hex()}"
            unfinished.write_bytes(sealed)
            unfinished.replace(self._cache / pack)

    def _index(self, pack: str) -> Index:
        with contextlib.suppress(OSError, Refused):
            return decode_index(self._keys, (self._cache / pack).read_bytes(), pack)
        key = f"{self._keys.vault_id}/indices/{pack}"
        sealed = get_bounded(self._objects, key, INDEX_MOST, f"the index of pack {pack}")
        index = decode_index(self._keys, sealed, pack)
        self.keep_index(pack, sealed)
        return index

    def _learn(self, name: str, index: Index) -> None:
        number = self.add_pack(name)
        self.segments[number] = [(one.offset, one.stored_bytes, one.plain_bytes) for one in index.segments]
        for segment_number, segment in enumerate(index.segments):
            base, offset = place(number, segment_number, 0, 0), 0
            for chunk_id, length in segment.chunks:
                self.places[chunk_id] = base | offset << _LENGTH_BITS | length
                offset += length

    def _forget_others(self, packs: set[str]) -> None:
        with contextlib.suppress(OSError):
            for file in self._cache.iterdir():
                if file.name not in packs:
                    file.unlink()


def listed(objects: Objects, vault_id: str, kind: str = "packs") -> dict[str, float]:
    """The names of a vault's packs (or `indices`, `archives`), and when each was written."""
    prefix = f"{vault_id}/{kind}"
    return {blob.key.removeprefix(prefix + "/"): blob.modified_at.timestamp() for blob in objects.list(prefix + "/")}
