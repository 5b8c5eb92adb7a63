"""Chunks into packs: what the vault has is not sent again; the rest is compressed, sealed, sent and read back.

The caller's thread names chunks and looks them up; a few threads compress and seal, a few send. What is under way is
bounded, so that a slow store costs time and no memory.
"""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from skerry.blobs.catalogue import Catalogue, pack_of, place
from skerry.blobs.keys import Data, Keys
from skerry.blobs.objects import Objects
from skerry.blobs.packs import MAGIC, PACK_SEGMENTS, SEGMENT_BYTES, Index, Segment, encode_index, encode_segment
from skerry.model.errors import Unavailable

_CODERS, _SENDERS = 2, 3
_PACKS_UNDER_WAY = 4  # each up to 16 MB, twice while it is read back


@dataclass(slots=True)
class _Lane:
    """A segment that is being filled. Files and manifest have one each, so that neither is read with the other."""

    parts: list[bytes] = field(default_factory=list[bytes])
    chunks: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    size: int = 0


@dataclass(slots=True)
class _Pack:
    name: str
    number: int
    segments: list[tuple[Future[bytes], Sequence[tuple[bytes, int]], int]]


class ChunkWriter:
    """Takes the chunks of one archive. `close` returns when all is in the store and was read back.

    Raises from `add` and `close`: Unavailable, the store's.
    """

    def __init__(self, objects: Objects, keys: Keys, catalogue: Catalogue) -> None:
        self._objects = objects
        self._keys = keys
        self._catalogue = catalogue
        self._places = catalogue.places
        self._coders = ThreadPoolExecutor(_CODERS)
        self._senders = ThreadPoolExecutor(_SENDERS)
        self._room = threading.Semaphore(_PACKS_UNDER_WAY)
        self._sending: list[Future[None]] = []
        self._lanes = (_Lane(), _Lane())
        self._pack: _Pack | None = None
        self._lock = threading.Lock()
        self._filling: set[bytes] = set()
        self.used: set[int] = set()  # numbers of the packs that this archive needs
        self.sent_bytes = 0

    def add(self, data: Data, lane: int = 0) -> bytes:
        """Have a chunk in the vault; its id."""
        chunk_id = self._keys.chunk_id(data)
        if not self.have(chunk_id) and chunk_id not in self._filling:
            filled = self._lanes[lane]
            self._filling.add(chunk_id)
            filled.parts.append(bytes(data))
            filled.chunks.append((chunk_id, len(data)))
            filled.size += len(data)
            if filled.size >= SEGMENT_BYTES:
                self._close_segment(lane)
        return chunk_id

    def have(self, chunk_id: bytes) -> bool:
        """Whether the vault has a chunk; if so, the archive relies on the pack it is in."""
        found = self._places.get(chunk_id)
        if found is None:
            return False
        self.used.add(pack_of(found))
        return True

    def flush(self) -> None:
        """Send what is there, and wait until it was read back."""
        for lane in range(len(self._lanes)):
            self._close_segment(lane)
        self._close_pack()
        for sending in self._sending:
            sending.result()

    def stop(self) -> None:
        """End the threads; what is under way is broken off as soon as it can be. Safe to call twice."""
        self._coders.shutdown(wait=False, cancel_futures=True)
        self._senders.shutdown(wait=True, cancel_futures=True)

    def _close_segment(self, lane: int) -> None:
        filled = self._lanes[lane]
        if not filled.chunks:
            return
        if self._pack is None:
            self._begin_pack()
        pack = self._pack
        assert pack is not None
        number, offset = len(pack.segments), 0
        for chunk_id, length in filled.chunks:
            self._places[chunk_id] = place(pack.number, number, offset, length)
            self._filling.discard(chunk_id)
            offset += length
        self.used.add(pack.number)
        coded = self._coders.submit(self._encode, filled.parts, pack.name, number)
        pack.segments.append((coded, filled.chunks, filled.size))
        filled.parts, filled.chunks, filled.size = [], [], 0
        if len(pack.segments) >= PACK_SEGMENTS:
            self._close_pack()

    def _begin_pack(self) -> None:
        self._room.acquire()
        for sending in self._sending:
            if sending.done():
                sending.result()  # one that failed ends the archive now
        self._sending = [one for one in self._sending if not one.done()]
        name = os.urandom(16).hex()
        self._pack = _Pack(name, self._catalogue.add_pack(name), [])

    def _close_pack(self) -> None:
        if self._pack is not None:
            self._sending.append(self._senders.submit(self._send, self._pack))
            self._pack = None

    def _encode(self, parts: Sequence[bytes], pack: str, number: int) -> bytes:
        return encode_segment(self._keys, b"".join(parts), pack, number)

    def _send(self, pack: _Pack) -> None:
        try:
            parts, segments, offset = [MAGIC], list[Segment](), len(MAGIC)
            for coded, chunks, plain_bytes in pack.segments:
                sealed = coded.result()
                parts.append(sealed)
                segments.append(Segment(offset, len(sealed), plain_bytes, chunks))
                offset += len(sealed)
            pack.segments.clear()
            self._put("packs", pack.name, b"".join(parts))
            index = encode_index(self._keys, Index(offset, segments), pack.name)
            # The index last: a pack without one is what a broken-off archive leaves, and nobody relies on it.
            self._put("indices", pack.name, index)
            self._catalogue.keep_index(pack.name, index)
        finally:
            self._room.release()

    def _put(self, kind: str, name: str, data: bytes) -> None:
        put_verified(self._objects, f"{self._keys.vault_id}/{kind}/{name}", data)
        with self._lock:
            self.sent_bytes += len(data)


def put_verified(objects: Objects, key: str, data: bytes) -> None:
    """Write an object that was not there, and read it back.

    Raises:
        Unavailable: It cannot be written, or is not what was written.
    """
    # A put that is sent again because its answer was lost may find its own object: the comparison tells.
    objects.put(key, data, create_only=True)
    if objects.get(key, 0, len(data) + 1) != data:
        raise Unavailable(f"The object store does not give back what was written as {key}.")
