"""Writing one command's spool: what comes is kept up to a cap, the head or the tail of it, and what is not is counted.

The index is the truth: output is written first, so what lies beyond the index is the torn end of a write and is cut.
Who keeps the head has one segment. Who keeps the tail fills one after the other and removes the oldest; at least
7/8 of the cap are there at any moment, as far as the sandbox's share goes. Nothing here knows how a command ends up
with which.
"""

import asyncio
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path

from skerry.model.command import Exit, Keep
from skerry.model.ids import SandboxId
from skerry.node.spool_audience import GRACE_S, Audience, ignored
from skerry.node.spool_files import (
    HEADER,
    INLINE,
    LOST,
    RECORD,
    Header,
    index_path,
    open_segment,
    output_path,
    read_header,
    remove_segment,
    remove_strays,
    starts_in,
)
from skerry.node.spool_quota import Share

_SEGMENTS = 8  # full ones in a tail
_MOST_SEGMENTS = 32  # with those that a full disk cut short


class Writer:
    """The one writer of a command's spool; live readers wait on it. Owns two descriptors once there is output."""

    __slots__ = (
        "_audience",
        "_cap",
        "_channel",
        "_charged",
        "_fd",
        "_index_fd",
        "_keep",
        "_older",
        "_path",
        "_records",
        "_share",
        "_share_of",
        "_start",
        "_waiters",
        "end",
        "exit",
        "kept",
        "sandbox_id",
        "started_at_s",
    )

    def __init__(
        self,
        path: Path,
        sandbox_id: SandboxId,
        cap_bytes: int,
        share_of: Callable[[SandboxId], Share],
        keep: Keep = Keep.HEAD,
        grace_s: float = GRACE_S,
    ) -> None:
        self._path = path
        self._cap = cap_bytes
        self._keep = keep
        self._fd = self._index_fd = -1
        self._start = 0  # of the segment that is written
        self._older: deque[tuple[int, int]] = deque()  # start and bytes on disk of those before it
        self._records = 0
        self._channel = -1
        self._waiters: list[asyncio.Future[None]] = []
        self._audience = Audience(grace_s)
        self._share_of = share_of
        self._share = share_of(sandbox_id)
        self._charged = 0  # bytes that count in the share
        self.sandbox_id = sandbox_id
        self.started_at_s = time.time()
        self.kept = 0  # offset up to which the index answers
        self.end = 0  # offset up to which bytes have come
        self.exit: Exit | None = None

    def begin(self) -> None:
        """Put on disk what has to be known after a crash, before the command runs."""
        if self._keep is not Keep.HEAD:
            with suppress(OSError):
                self._open()

    async def append(self, channel: int, data: bytes) -> None:
        """Take the next bytes. What cannot be kept (the cap, a full disk) is counted."""
        if self._keep is not Keep.HEAD:
            if self._keep is Keep.UNREAD:
                await self._audience.caught_up(self.end - self._cap // 2)
            await self._append_tail(channel, data)
            return
        room = self._room(channel)
        if self.kept == self.end and room > 0:
            part = data if len(data) <= room else data[:room]
            if granted := await self._claim(channel, len(part)):
                await self._put(channel, part[:granted])
                self._wake()
        self.end += len(data)

    async def _append_tail(self, channel: int, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            # After a failed write a segment of its own: the gap lies between the two.
            if (self.kept != self.end or self._room(channel) <= 0) and not await asyncio.to_thread(self._rotate):
                break
            part = bytes(rest[: self._room(channel)])
            granted = await self._claim(channel, len(part))
            # Its own past makes room at last.
            while granted < len(part) and self._older and not self._share.is_disk_low():
                await asyncio.to_thread(self._drop_oldest)
                granted += self._take(channel, len(part) - granted)
            if not granted:
                break
            part = part[:granted]
            await self._put(channel, part)
            self.end += len(part)
            rest = rest[len(part) :]
        self.end += len(rest)
        self._wake()

    async def _claim(self, channel: int, wanted: int) -> int:
        """How many of `wanted` bytes the sandbox may keep. All of it, mostly, and then without waiting."""
        granted = self._take(channel, wanted)
        if granted == wanted or not self._share.can_make_room:
            return granted
        more = await self._share.claim(wanted - granted)
        self._charged += more
        return granted + more

    def _take(self, channel: int, wanted: int) -> int:
        record = 0 if channel == self._channel else RECORD.size
        taken = self._share.take(wanted + record)
        self._charged += taken
        return max(0, taken - record)

    async def _put(self, channel: int, data: bytes) -> None:
        if len(data) <= INLINE:
            self._store(channel, data)
        else:
            await asyncio.to_thread(self._store, channel, data)
        self._settle()

    def _settle(self) -> None:
        """Have exactly that count which is there."""
        there = self._size() + sum(size for _, size in self._older)
        self._share.add(there - self._charged)
        self._charged = there

    def lost(self, upto: int) -> None:
        """Record that the bytes up to `upto` never come: a hole in the output, so that offsets stay positions."""
        if upto <= self.end:
            return
        if self._keep is Keep.HEAD and self.kept == self.end and upto <= self._cap:
            with suppress(OSError):
                self._open()
                os.ftruncate(self._fd, upto)
                self._record(LOST, upto)
                self.kept = upto
            self._settle()
        self.end = upto  # a tail goes on in another segment, there
        self._wake()

    def reading(self, offset: int) -> AbstractContextManager[Callable[[int], None]]:
        """Somebody follows from `offset` on, and calls what this gives with each position that was reached."""
        # From beyond the end nobody reads: that is how one waits for the end alone.
        return self._audience.member(offset) if offset <= self.end else nullcontext(ignored)

    def release(self) -> None:
        """Wait for no reader from now on: the command is being killed, and its end is to be heard of."""
        self._audience.dismiss()

    def finish(self, exit: Exit) -> None:
        """Tell the end to everybody who follows. On disk it is only after `Spool.keep_exit`."""
        if self.exit is None:
            self.exit = exit
            self._wake()

    def close(self) -> None:
        for fd in (self._fd, self._index_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self._index_fd = -1

    def discard(self) -> None:
        """Close, and leave nothing on disk."""
        if self._fd >= 0:
            self.close()
            shutil.rmtree(self._path, ignore_errors=True)
        self._share.add(-self._charged)
        self._charged = 0

    @property
    def charge(self) -> tuple[Share, int]:
        """Whose share its bytes count in, and how many they are."""
        return self._share, self._charged

    async def changed(self) -> None:
        """Return when bytes or the end have come since the caller last looked (and has awaited nothing since)."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            with suppress(ValueError):
                self._waiters.remove(waiter)

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _room(self, channel: int) -> int:
        # Records count: a command that alternates channels byte by byte would fill the disk with index instead.
        records = self._records + (channel != self._channel)
        cap = self._cap if self._keep is Keep.HEAD else max(self._cap // _SEGMENTS, RECORD.size * 2)
        return cap - (self.kept - self._start) - records * RECORD.size

    def _store(self, channel: int, data: bytes) -> None:
        try:
            self._open()
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], self.kept - self._start + written)
            self._record(channel, self.kept + len(data))
        except OSError:
            return  # `kept` stays behind `end` from now on; readers are told exactly what is missing
        self.kept += len(data)

    def _record(self, channel: int, end: int) -> None:
        number = self._records - 1 if channel == self._channel else self._records
        record = RECORD.pack(end - self._start << 8 | channel)
        os.pwrite(self._index_fd, record, HEADER.size + number * RECORD.size)
        self._records, self._channel = number + 1, channel

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._path.mkdir(mode=0o700, exist_ok=True)
        self._fd, self._index_fd = open_segment(self._path, self._start, write=True)
        try:
            os.pwrite(self._index_fd, Header(self.sandbox_id, self.started_at_s, self._keep).packed(), 0)
        except OSError:
            self.close()
            raise

    # -- keeping the tail --------------------------------------------------------------------------------------

    def _rotate(self) -> bool:
        """Go on in a new segment at `end`, and remove the oldest beyond the cap. False: the disk is full."""
        self._retire()
        self._start = self.kept = self.end
        self._records, self._channel = 0, -1
        try:
            self._open()
        except OSError:
            self.close()
            with suppress(OSError):
                remove_segment(self._path, self._start)
            return False
        self._evict()
        return True

    def _retire(self) -> None:
        """Let go of the segment that is written: an older one from now on, or none where it holds nothing."""
        if self._fd < 0:
            return
        self.close()
        if self.kept > self._start:
            self._older.append((self._start, self._size()))
        else:
            with suppress(OSError):
                remove_segment(self._path, self._start)

    def _size(self) -> int:
        return self.kept - self._start + self._records * RECORD.size

    def _evict(self) -> None:
        full = self._cap - self._cap // _SEGMENTS  # without what the new segment may take
        while self._older and (sum(size for _, size in self._older) > full or len(self._older) >= _MOST_SEGMENTS):
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        with suppress(OSError):
            remove_segment(self._path, self._older[0][0])
        self._older.popleft()
        self._settle()

    # -- after a crash -----------------------------------------------------------------------------------------

    def recover(self) -> None:
        """Go on where a writer that was killed left off: cut the torn ends off index and output."""
        starts, header = starts_in(self._path), None
        while starts and (header := read_header(self._path, starts[-1])) is None:
            remove_segment(self._path, starts.pop())  # killed before it was one
        if header is None:
            return
        self.sandbox_id, self.started_at_s, self._keep = header.sandbox_id, header.started_at_s, header.keep
        self._share = self._share_of(self.sandbox_id)
        remove_strays(self._path, starts)
        self._older.extend((start, self._size_on_disk(start)) for start in starts[:-1])
        self._start = self.kept = starts[-1]
        self._open()
        size = os.fstat(self._index_fd).st_size
        self._records = max(0, (size - HEADER.size) // RECORD.size)
        os.ftruncate(self._index_fd, HEADER.size + self._records * RECORD.size)
        if self._records:
            at = HEADER.size + (self._records - 1) * RECORD.size
            (record,) = RECORD.unpack(os.pread(self._index_fd, RECORD.size, at))
            self.kept, self._channel = self._start + (record >> 8), record & 0xFF
        os.ftruncate(self._fd, self.kept - self._start)
        self.end = self.kept
        self._evict()
        self._settle()

    def _size_on_disk(self, start: int) -> int:
        return sum(os.stat(name(self._path, start)).st_size for name in (output_path, index_path))  # noqa: PTH116
