"""Chunks out of packs: segments are fetched, opened and unpacked ahead of their use by a few threads.

Every chunk is checked against its name, so what comes out is what went in, whatever the store did.
"""

from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from skerry.blobs.catalogue import Catalogue, spot
from skerry.blobs.keys import Keys
from skerry.blobs.limits import damaged
from skerry.blobs.objects import Objects
from skerry.blobs.packs import decode_segment
from skerry.model.errors import NotFound

_FETCHERS = 4
_HELD = 64  # segments of 1 to 2 MB


class SegmentReader:
    """Gives chunks by id, from the packs that a catalogue knows. For one thread."""

    def __init__(self, objects: Objects, keys: Keys, catalogue: Catalogue) -> None:
        self._objects = objects
        self._keys = keys
        self._catalogue = catalogue
        self._pool = ThreadPoolExecutor(_FETCHERS)
        self._held: OrderedDict[tuple[int, int], Future[bytes]] = OrderedDict()
        self.fetched_bytes = 0

    def expect(self, chunk_id: bytes) -> bool:
        """Begin to fetch what a chunk is in; whether that is one more. Raises Refused: no pack has the chunk."""
        place = spot(self._place(chunk_id))
        return self._hold((place.pack, place.segment))

    def chunk(self, chunk_id: bytes) -> memoryview:
        """Its bytes.

        Raises:
            Refused: They are damaged.
            Unavailable: The store cannot be used.
        """
        place = spot(self._place(chunk_id))
        key = place.pack, place.segment
        self._hold(key)
        segment = memoryview(self._held[key].result())
        data = segment[place.offset : place.offset + place.length]
        if len(data) != place.length or self._keys.chunk_id(data) != chunk_id:
            raise damaged(
                f"pack {self._catalogue.packs[place.pack]} segment {place.segment} has not what its index tells"
            )
        return data

    def stop(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _place(self, chunk_id: bytes) -> int:
        place = self._catalogue.places.get(chunk_id)
        if place is None:
            raise damaged(f"none of its packs has chunk {chunk_id.hex()[:16]}")
        return place

    def _hold(self, key: tuple[int, int]) -> bool:
        if key in self._held:
            self._held.move_to_end(key)
            return False
        self._held[key] = self._pool.submit(self._fetch, *key)
        if len(self._held) > _HELD:
            self._held.popitem(last=False)
        return True

    def _fetch(self, pack: int, number: int) -> bytes:
        name = self._catalogue.packs[pack]
        offset, stored, plain = self._catalogue.segments[pack][number]
        try:
            sealed = self._objects.get(f"{self._keys.vault_id}/packs/{name}", offset, stored)
        except NotFound:
            raise damaged(f"pack {name} is not in the object store") from None
        self.fetched_bytes += len(sealed)
        return decode_segment(self._keys, sealed, name, number, plain)
