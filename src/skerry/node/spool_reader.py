"""Reading one command's spool: a position in it that follows the writer from segment to segment."""

import asyncio
import os
from pathlib import Path

from skerry.model.command import Lost, Output
from skerry.node.spool_files import HEADER, INLINE, LOST, RECORD, open_segment, starts_in

CHUNK = 262_144  # most bytes in one Output
_BATCH = 512  # records read at once


class Reader:
    """A position in one spool. Opens its own descriptors, so that the writer may go; holds one chunk at a time."""

    def __init__(self, path: Path, offset: int) -> None:
        self.offset = offset
        self._path = path
        self._start = 0  # of the segment that is open
        self._fd = self._index_fd = -1
        self._number = 0  # the record that holds `offset`, or one before it
        self._records: list[int] = []

    async def next(self, upto: int | None) -> Output | Lost | None:
        """What comes next below `upto` (None: the index's end); None when there is no more."""
        if upto is not None and self.offset >= upto:
            return None
        while True:
            if self._fd < 0 and not self._open():
                return None
            if self.offset < self._start:
                return self._skip(self._start if upto is None else min(self._start, upto))
            piece = await self._piece(upto)
            if piece is not None:
                return piece
            if not self._move_on():
                return None

    def _skip(self, upto: int) -> Lost:
        start, self.offset = self.offset, upto
        return Lost(start, upto - start)

    async def _piece(self, upto: int | None) -> Output | Lost | None:
        run = self._run()
        if run is None:
            return None
        end, channel = run[0] + self._start, run[1]
        if upto is not None:
            end = min(end, upto)
        start = self.offset
        if channel == LOST:
            return self._skip(end)
        size, at = min(end - start, CHUNK), start - self._start
        if size <= INLINE:
            data = os.pread(self._fd, size, at)
        else:
            data = await asyncio.to_thread(os.pread, self._fd, size, at)
        if not data:
            return None  # shorter than its index: removed under our hands, or cut by hand; what is missing is lost
        self.offset = start + len(data)
        return Output(channel, start, data)

    def _open(self) -> bool:
        """Open the segment that holds `offset`, else the first behind it."""
        while starts := starts_in(self._path):
            self._start = next((start for start in reversed(starts) if start <= self.offset), starts[0])
            try:
                self._fd, self._index_fd = open_segment(self._path, self._start, write=False)
            except FileNotFoundError:
                if starts_in(self._path) == starts:
                    return False  # half of it is missing
                continue  # the writer has removed it meanwhile
            self._number, self._records = self._seek(), []
            return True
        return False  # nothing was printed (yet)

    def _move_on(self) -> bool:
        """Leave a segment of which nothing more comes for the one behind it. False: it is the last."""
        for following in [start for start in starts_in(self._path) if start > self._start]:
            try:
                opened = open_segment(self._path, following, write=False)
            except FileNotFoundError:
                continue  # the writer has removed it meanwhile
            self.close()
            self._fd, self._index_fd = opened
            self._start, self._number, self._records = following, 0, []
            return True
        return False

    def _seek(self) -> int:
        low, high = 0, max(0, (os.fstat(self._index_fd).st_size - HEADER.size) // RECORD.size)
        while low < high:
            middle = (low + high) // 2
            record = self._load(middle, 1)
            if record and record[0] >> 8 > self.offset - self._start:
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
        position = self.offset - self._start
        while True:
            while self._records:
                record = self._records[0]
                if record >> 8 > position:
                    return record >> 8, record & 0xFF
                if len(self._records) == 1:
                    break
                self._records.pop(0)
                self._number += 1
            fresh = self._load(self._number, _BATCH)
            if not fresh or fresh[-1] >> 8 <= position:
                self._records = fresh[-1:]
                self._number += max(0, len(fresh) - 1)
                return None
            self._records = fresh

    def close(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index_fd = -1
