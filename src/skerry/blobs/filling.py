"""What goes into new files, and what they are like when complete: in a thread beside the one that makes names.

The kernel's work on a small file is half its name and half its content; so two cores are used. A file comes here open,
by its descriptor alone.
"""

import os
from collections.abc import Sequence
from queue import Queue
from threading import Thread
from typing import NamedTuple

from skerry.blobs.attributes import complete
from skerry.blobs.limits import damaged
from skerry.blobs.manifest import LINKED, PIECE, Entry, file_records, pack_content
from skerry.blobs.segments import Awaited, SegmentReader
from skerry.blobs.stat_cache import StatCacheWriter

_BATCHES = 4  # that wait, with what they hold open


class Run(NamedTuple):
    """A run of a file's data, and the length of the hole before it."""

    hole: int
    chunk: Awaited


class Part(NamedTuple):
    """Some of a new file. The `last` part completes it, and its descriptor is given away with it."""

    fd: int
    entry: Entry
    runs: Sequence[Run]
    last: bool


class Filler:
    """Takes the parts of one file after the other, in order. Starts a thread, which `finish` or `close` ends."""

    def __init__(self, cache: StatCacheWriter, reader: SegmentReader) -> None:
        self._cache = cache
        self._data = reader.data
        self._queue: Queue[Sequence[Part] | None] = Queue(_BATCHES)
        self._error: BaseException | None = None
        self._closed = False
        self._at = 0
        self._runs: list[Run] = []
        self.latest_ctime_ns = 0
        self._thread = Thread(target=self._work, daemon=True)
        self._thread.start()

    def put(self, parts: Sequence[Part]) -> None:
        """Have these done. What went wrong with earlier ones is raised: Refused, Unavailable, OSError."""
        self._queue.put(parts)
        self._tell()

    def finish(self) -> None:
        """Return when all is done. Raises as `put`."""
        self._end()
        self._tell()

    def close(self) -> None:
        """Do no more, and give back the descriptors that were given away. Safe to call at any time."""
        self._closed = True
        if self._thread.is_alive():
            self._end()

    def _end(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _tell(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while (parts := self._queue.get()) is not None:
            for part in parts:
                try:
                    if self._error is None and not self._closed:
                        self._do(part)
                except BaseException as error:  # noqa: BLE001 - raised again by whoever puts parts here
                    self._error = error
                finally:
                    if part.last:
                        os.close(part.fd)

    def _do(self, part: Part) -> None:
        fd, entry, runs, last = part
        for run in runs:
            self._write(fd, entry, run)
        self._runs += runs
        if last:
            self._complete(fd, entry)
            self._at = 0
            self._runs = []

    def _write(self, fd: int, entry: Entry, run: Run) -> None:
        data = self._data(run.chunk)
        at = self._at + run.hole
        self._at = at + len(data)
        if self._at > entry.size:
            raise damaged("the manifest has a file that is longer than it says")
        while data:
            written = os.pwrite(fd, data, at)
            at += written
            data = data[written:]

    def _complete(self, fd: int, entry: Entry) -> None:
        if self._at != entry.size:
            os.ftruncate(fd, entry.size)
        status = complete(fd, entry)
        self.latest_ctime_ns = max(self.latest_ctime_ns, status.st_ctime_ns)
        if not entry.flags & LINKED:  # one more name of it is a change
            self._cache.add(status, self._records(status, entry))

    def _records(self, status: os.stat_result, entry: Entry) -> bytes:
        """What the manifest has of a file that is complete."""
        if len(self._runs) == len(entry.pieces):
            return entry.raw
        pieces = [PIECE.pack(run.hole, run.chunk.spot.length, run.chunk.chunk_id) for run in self._runs]
        tail = len(entry.xattrs), entry.xattrs + pack_content(entry.size, pieces)
        return file_records(status, entry.name, b"", tail)
