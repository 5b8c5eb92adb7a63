"""Reading one command's spool: its format, and a position in it that follows the writer. See `spool` for the files."""

import asyncio
import os
import struct
from pathlib import Path

from skerry.model.command import Lost, Output

CHUNK = 262_144  # most bytes in one Output
INLINE = 16_384  # reads and writes up to this size are made on the loop: a thread would cost more than the page cache

HEADER = struct.Struct("<8s48sQ")  # magic, sandbox id, start in ms since 1970
MAGIC = b"skspool1"
RECORD = struct.Struct("<Q")  # end offset << 8 | channel
_BATCH = 512  # records read at once
LOST = 0  # the channel of bytes that never came


class Reader:
    """A position in one spool. Opens its own descriptors, so that the writer may go; holds one chunk at a time."""

    def __init__(self, path: Path, offset: int) -> None:
        self.offset = offset
        self._path = path
        self._fd = self._index_fd = -1
        self._number = 0  # the record that holds `offset`, or one before it
        self._records: list[int] = []

    async def next(self, upto: int | None) -> Output | Lost | None:
        """What comes next below `upto` (None: the index's end); None when there is no more."""
        if upto is not None and self.offset >= upto:
            return None
        if not self._open():
            return None
        run = self._run()
        if run is None:
            return None
        end, channel = run
        if upto is not None:
            end = min(end, upto)
        start = self.offset
        if channel == LOST:
            self.offset = end
            return Lost(start, end - start)
        size = min(end - start, CHUNK)
        if size <= INLINE:
            data = os.pread(self._fd, size, start)
        else:
            data = await asyncio.to_thread(os.pread, self._fd, size, start)
        if not data:
            return None  # shorter than its index: the file was cut by hand; the rest is told as lost
        self.offset = start + len(data)
        return Output(channel, start, data)

    def _open(self) -> bool:
        if self._fd < 0:
            try:
                self._fd = os.open(self._path / "output", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
                self._index_fd = os.open(self._path / "index", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except FileNotFoundError:
                self.close()
                return False  # nothing was printed (yet)
            self._number = self._seek()
        return True

    def _seek(self) -> int:
        low, high = 0, max(0, (os.fstat(self._index_fd).st_size - HEADER.size) // RECORD.size)
        while low < high:
            middle = (low + high) // 2
            record = self._load(middle, 1)
            if record and record[0] >> 8 > self.offset:
                high = middle
            else:
                low = middle + 1
        return low

    def _load(self, number: int, count: int) -> list[int]:
        raw = os.pread(self._index_fd, count * RECORD.size, HEADER.size + number * RECORD.size)
        usable = len(raw) - len(raw) % RECORD.size
        return [record for (record,) in RECORD.iter_unpack(raw[:usable])]

    def _run(self) -> tuple[int, int] | None:
        """End and channel of the run that holds `offset`. The last record read may have grown: it is read again."""
        while True:
            while self._records:
                record = self._records[0]
                if record >> 8 > self.offset:
                    return record >> 8, record & 0xFF
                if len(self._records) == 1:
                    break
                self._records.pop(0)
                self._number += 1
            fresh = self._load(self._number, _BATCH)
            if not fresh or fresh[-1] >> 8 <= self.offset:
                self._records = fresh[-1:]
                self._number += max(0, len(fresh) - 1)
                return None
            self._records = fresh

    def close(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index_fd = -1
