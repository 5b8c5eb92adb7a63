"""Chunks out of packs: segments are fetched, opened and unpacked ahead of their use by a few threads.

Every chunk is checked against its name, so what comes out is what went in, whatever the store did.
"""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from skerry.blobs.catalogue import Catalogue, Spot, spot
from skerry.blobs.keys import Keys
from skerry.blobs.limits import damaged
from skerry.blobs.objects import Objects
from skerry.blobs.packs import decode_segment
from skerry.model.errors import NotFound

_FETCHERS = 4
_HELD = 64  # segments of 1 to 2 MB


class Awaited(NamedTuple):
    """A chunk whose segment is being fetched, or is there. Holds that segment."""

    chunk_id: bytes
    spot: Spot
    segment: Future[bytes]


class SegmentReader:
    """Gives chunks by id, from the packs that a catalogue knows. For one thread, but for `data`."""

    def __init__(self, objects: Objects, keys: Keys, catalogue: Catalogue) -> None:
        self._objects = objects
        self._keys = keys
        self._catalogue = catalogue
        self._pool = ThreadPoolExecutor(_FETCHERS)
        self._held: OrderedDict[tuple[int, int], Future[bytes]] = OrderedDict()
        self.begun = 0  # segments, so far
        self.fetched_bytes = 0

    def expect(self, chunk_id: bytes) -> Awaited:
        """Begin to fetch what a chunk is in. Raises Refused: no pack has the chunk."""
        place = self._catalogue.places.get(chunk_id)
        if place is None:
            raise damaged(f"none of its packs has chunk {chunk_id.hex()[:16]}")
        where = spot(place)
        key = where.pack, where.segment
        segment = self._held.get(key)
        if segment is None:
            segment = self._begin(key)
        else:
            self._held.move_to_end(key)
        return Awaited(chunk_id, where, segment)

    def data(self, awaited: Awaited) -> memoryview:
        """A chunk's bytes. From any thread.

        Raises:
            Refused: They are damaged.
            Unavailable: The store cannot be used.
        """
        chunk_id, where, segment = awaited
        data = memoryview(segment.result())[where.offset : where.offset + where.length]
        if len(data) != where.length or self._keys.chunk_id(data) != chunk_id:
            raise damaged(
                f"pack {self._catalogue.packs[where.pack]} segment {where.segment} has not what its index tells"
            )
        return data

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self, key: tuple[int, int]) -> Future[bytes]:
        segment = self._held[key] = self._pool.submit(self._fetch, *key)
        self.begun += 1
        if len(self._held) > _HELD:
            self._held.popitem(last=False)
        return segment

    def _fetch(self, pack: int, number: int) -> bytes:
        name = self._catalogue.packs[pack]
        offset, stored, plain = self._catalogue.segments[pack][number]
        try:
            sealed = self._objects.get(f"{self._keys.vault_id}/packs/{name}", offset, stored)
        except NotFound:
            raise damaged(f"pack {name} is not in the object store") from None
        self.fetched_bytes += len(sealed)
        return decode_segment(self._keys, sealed, name, number, plain)
