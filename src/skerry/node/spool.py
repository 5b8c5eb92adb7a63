"""What commands print, on disk: one directory a command, addressed by offset, capped, following the writer live.

    <spool>/<command id>/output      raw bytes, both channels in the order they came; a byte's position is its offset
    <spool>/<command id>/index       a header, then one record a run of bytes of one channel: its end, its channel
    <spool>/<command id>/exit.json   how the command ended; written last

The index is the truth: output is written first, so what lies beyond the index is the torn end of a write and is cut.
Nothing is synced: files survive the death of this process, and commands do not survive the death of the host. A command
that prints nothing costs no file until it has ended. Knows nothing of sandboxes beyond their id, and nothing of sbxd.
"""

import asyncio
import json
import os
import shutil
import struct
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path

from skerry.guest.shapes import exit_from, exit_to
from skerry.model.command import CommandCause, CommandEvent, Exit, Lost
from skerry.model.errors import Invalid, NotFound
from skerry.model.ids import CommandId, SandboxId, is_id
from skerry.node.spool_reader import HEADER, INLINE, LOST, MAGIC, RECORD, Reader


class Writer:
    """The one writer of a command's spool; live readers wait on it. Owns two descriptors once there is output."""

    __slots__ = (
        "_cap",
        "_channel",
        "_fd",
        "_index_fd",
        "_path",
        "_records",
        "_run_start",
        "_waiters",
        "end",
        "exit",
        "kept",
        "sandbox_id",
        "started_at_s",
    )

    def __init__(self, path: Path, sandbox_id: SandboxId, cap_bytes: int) -> None:
        self._path = path
        self._cap = cap_bytes
        self._fd = self._index_fd = -1
        self._records = 0
        self._channel = -1
        self._waiters: list[asyncio.Future[None]] = []
        self.sandbox_id = sandbox_id
        self.started_at_s = time.time()
        self.kept = 0  # offset up to which the index answers
        self.end = 0  # offset up to which bytes have come
        self.exit: Exit | None = None

    async def append(self, channel: int, data: bytes) -> None:
        """Take the next bytes. Beyond the cap, and after a failed write (a full disk), they are counted, not kept."""
        room = self._room(channel)
        if self.kept == self.end and room > 0:
            part = data if len(data) <= room else data[:room]
            if len(part) <= INLINE:
                self._store(channel, part)
            else:
                await asyncio.to_thread(self._store, channel, part)
            self._wake()
        self.end += len(data)

    def lost(self, upto: int) -> None:
        """Record that the bytes up to `upto` never come: a hole in the output, so that offsets stay positions."""
        if upto <= self.end:
            return
        if self.kept == self.end and upto <= self._cap:
            with suppress(OSError):
                self._open()
                os.ftruncate(self._fd, upto)
                self._record(LOST, upto)
                self.kept = upto
        self.end = upto
        self._wake()

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
        return self._cap - self.kept - records * RECORD.size

    def _store(self, channel: int, data: bytes) -> None:
        try:
            self._open()
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, memoryview(data)[written:], self.kept + written)
            self._record(channel, self.kept + len(data))
        except OSError:
            return  # `kept` stays behind `end` from now on; readers are told exactly what is missing
        self.kept += len(data)

    def _record(self, channel: int, end: int) -> None:
        number = self._records - 1 if channel == self._channel else self._records
        os.pwrite(self._index_fd, RECORD.pack(end << 8 | channel), HEADER.size + number * RECORD.size)
        self._records, self._channel = number + 1, channel

    def _open(self) -> None:
        if self._fd >= 0:
            return
        self._path.mkdir(mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._path / "output", flags, 0o600)
        self._index_fd = os.open(self._path / "index", flags, 0o600)
        header = HEADER.pack(MAGIC, self.sandbox_id.encode(), round(self.started_at_s * 1000))
        os.pwrite(self._index_fd, header, 0)

    def recover(self) -> None:
        """Go on where a writer that was killed left off: cut the torn ends off index and output."""
        if not (self._path / "index").exists():
            return
        with (self._path / "index").open("rb") as index, suppress(struct.error):
            _, _, started_ms = HEADER.unpack(index.read(HEADER.size))
            self.started_at_s = started_ms / 1000
        self._open()
        size = os.fstat(self._index_fd).st_size
        self._records = max(0, (size - HEADER.size) // RECORD.size)
        os.ftruncate(self._index_fd, HEADER.size + self._records * RECORD.size)
        if self._records:
            at = HEADER.size + (self._records - 1) * RECORD.size
            (record,) = RECORD.unpack(os.pread(self._index_fd, RECORD.size, at))
            self.kept, self._channel = record >> 8, record & 0xFF
        os.ftruncate(self._fd, self.kept)
        self.end = self.kept


class Spool:
    """The spools of all commands of one node. Holds in memory only those that run, or whose end is not on disk yet."""

    def __init__(self, directory: Path, cap_bytes: int, keep_s: float) -> None:
        self._directory = directory
        self._cap_bytes = cap_bytes
        self._keep_s = keep_s
        self._live: dict[CommandId, Writer] = {}
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def __contains__(self, command_id: CommandId) -> bool:
        return command_id in self._live or (is_id(command_id, "cmd") and (self._directory / command_id).exists())

    def live(self, command_id: CommandId) -> Writer | None:
        return self._live.get(command_id)

    def live_of(self, sandbox_id: SandboxId) -> dict[CommandId, Writer]:
        return {key: writer for key, writer in self._live.items() if writer.sandbox_id == sandbox_id}

    def start(self, sandbox_id: SandboxId, command_id: CommandId) -> Writer:
        """The writer of a command: new, or, after this process was killed, going on at `end`."""
        if not is_id(command_id, "cmd"):
            raise Invalid(f"'{command_id}' is not a command's id.", field="id")
        if command_id not in self._live:
            writer = Writer(self._directory / command_id, sandbox_id, self._cap_bytes)
            writer.recover()
            self._live[command_id] = writer
        return self._live[command_id]

    def discard(self, command_id: CommandId) -> None:
        """Forget a command that did not start."""
        writer = self._live.pop(command_id, None)
        if writer is not None:
            writer.finish(Exit(None, None, False, 0, 0, CommandCause.NOT_STARTED))
            writer.close()

    def keep_exit(self, command_id: CommandId) -> None:
        """Put the end of a finished command on disk and let go of its writer. Blocks on the disk: call it in a thread.

        Raises:
            OSError: It could not be written; the end is still held in memory, so call again.
        """
        writer = self._live.get(command_id)
        if writer is None or writer.exit is None:
            return
        path = self._directory / command_id
        path.mkdir(mode=0o700, exist_ok=True)
        told = {"sandbox": writer.sandbox_id, "exit": exit_to(writer.exit)}
        partial = path / "exit.partial"
        partial.write_text(json.dumps(told))
        partial.rename(path / "exit.json")

    def let_go(self, command_id: CommandId) -> None:
        """Drop the writer of a command whose end is on disk."""
        writer = self._live.pop(command_id, None)
        if writer is not None:
            writer.close()

    def check_owner(self, command_id: CommandId, sandbox_id: SandboxId) -> None:
        """Raises NotFound unless the command is one of this sandbox."""
        writer = self._live.get(command_id)
        if (writer.sandbox_id if writer else self._ended(command_id)[0]) != sandbox_id:
            raise _unknown(command_id)

    def exit_of(self, command_id: CommandId) -> Exit | None:
        """How it ended; None while it runs.

        Raises:
            NotFound: No such command here.
        """
        if (writer := self._live.get(command_id)) is not None:
            return writer.exit
        return self._ended(command_id)[1]

    async def follow(
        self, sandbox_id: SandboxId, command_id: CommandId, offset: int = 0, *, follow: bool = True
    ) -> AsyncIterator[CommandEvent]:
        """The output from `offset` on, as it comes, then the Exit. Any number at once; a slow one holds up nobody.

        Without `follow` only what there is now, and no Exit when it still runs.

        Raises:
            NotFound: This sandbox has, or had, no such command, or its output is no longer kept.
        """
        writer = self._live.get(command_id)
        owner, exit = (writer.sandbox_id, None) if writer else self._ended(command_id)
        if owner != sandbox_id:
            raise _unknown(command_id)
        reader = Reader(self._directory / command_id, offset)
        try:
            while True:
                ended = writer.exit if writer else exit
                kept = writer.kept if writer else None
                while (batch := await reader.next(kept)) is not None:
                    yield batch
                if ended is not None:
                    break
                if not follow:
                    return
                if writer is not None and writer.kept == kept and writer.exit is None:
                    await writer.changed()
            if ended.offset > reader.offset:
                yield Lost(reader.offset, ended.offset - reader.offset)
            yield ended
        finally:
            reader.close()

    def _ended(self, command_id: CommandId) -> tuple[SandboxId, Exit]:
        if not is_id(command_id, "cmd"):
            raise _unknown(command_id)
        try:
            told = json.loads((self._directory / command_id / "exit.json").read_bytes())
        except (FileNotFoundError, ValueError) as error:
            raise _unknown(command_id) from error
        return SandboxId(told["sandbox"]), exit_from(told["exit"])

    def unfinished(self) -> Iterator[tuple[CommandId, SandboxId]]:
        """Commands with output and without an end that nobody writes, with their sandbox."""
        for entry in sorted(self._directory.iterdir()):
            command_id = CommandId(entry.name)
            if command_id in self._live or not is_id(entry.name, "cmd") or (entry / "exit.json").exists():
                continue
            with suppress(OSError, struct.error, ValueError):
                with (entry / "index").open("rb") as index:
                    magic, owner, _ = HEADER.unpack(index.read(HEADER.size))
                if magic == MAGIC:
                    yield command_id, SandboxId(owner.rstrip(b"\0").decode("ascii"))

    def sweep(self, now_s: float) -> int:
        """Remove what ended longer ago than outputs are kept, and what has neither output nor end; how many. Blocks."""
        removed = 0
        for entry in self._directory.iterdir():
            if CommandId(entry.name) in self._live:
                continue
            with suppress(FileNotFoundError):
                if now_s - entry.stat().st_mtime > self._keep_s:
                    shutil.rmtree(entry, ignore_errors=True)
                    removed += 1
        return removed


def _unknown(command_id: CommandId) -> NotFound:
    return NotFound(f"No output of command '{command_id}' is kept here. It is unknown, or older than outputs are kept.")
