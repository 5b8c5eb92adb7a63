"""What all outputs of one sandbox may take together. The oldest ended ones make room for what is printed now.

An output that made room keeps its end: who reads it is told all of it as lost. Beyond that, and where the disk has no
more than a reserve left for the host, what is printed is counted, not kept. Knows of sizes; writes and reads nothing.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from skerry.model.ids import CommandId, SandboxId, is_id
from skerry.node.spool_files import index_path, output_path, read_header, remove_segment, starts_in

SANDBOX_CAP_BYTES = 1 << 30
_RESERVE_BYTES = 1 << 30  # for the host, or a twentieth of a smaller disk
_LOOK_EVERY_BYTES = 1 << 18


class Share:
    """One sandbox's. Used from the loop and from threads."""

    def __init__(self, quota: "Quota") -> None:
        self._quota = quota
        self._lock = Lock()
        self._used = 0
        self._idle: dict[CommandId, int] = {}  # what may make room, oldest first

    @property
    def can_make_room(self) -> bool:
        return bool(self._idle)

    def put_in_line(self, command_id: CommandId, size: int) -> None:
        with self._lock:
            self._idle[command_id] = size

    def remove(self, command_id: CommandId, size: int) -> None:
        with self._lock:
            self._idle.pop(command_id, None)
            self._used -= size

    def add(self, size: int) -> None:
        """Count bytes that have been written; negative ones have been removed."""
        with self._lock:
            self._used += size

    def take(self, wanted: int) -> int:
        """How many of `wanted` bytes may be kept; they count from here on."""
        if self.is_disk_low(wanted):
            return 0
        with self._lock:
            granted = max(0, min(wanted, self._quota.cap_bytes - self._used))
            self._used += granted
        return granted

    async def claim(self, wanted: int) -> int:
        """As `take`, after ended outputs have made room where that is needed."""
        granted = self.take(wanted)
        while granted < wanted and self._idle and not self.is_disk_low(0):
            await asyncio.to_thread(self._make_room, wanted - granted)
            granted += self.take(wanted - granted)
        return granted

    def _make_room(self, missing: int) -> None:
        while missing > 0:
            with self._lock:
                oldest = next(iter(self._idle), None)
            if oldest is None:
                return
            missing -= self._quota.empty(oldest)

    def is_disk_low(self, wanted: int = 0) -> bool:
        """Whether nothing more is kept of anybody, however much room is made here."""
        return self._quota.is_disk_low(wanted)


class Quota:
    """Of all sandboxes of a node. Knows what lies in `directory` when it is made."""

    def __init__(self, directory: Path, cap_bytes: int, free_bytes: Callable[[], int] | None = None) -> None:
        self.cap_bytes = cap_bytes
        self._directory = directory
        self._free_bytes = free_bytes or self._free
        self._unlooked = 0  # bytes kept since the disk was looked at
        self._low = True
        self._shares: WeakValueDictionary[SandboxId, Share] = WeakValueDictionary()
        self._of: dict[CommandId, tuple[Share, int]] = {}  # what nobody writes
        self._find()

    def share(self, sandbox_id: SandboxId) -> Share:
        share = self._shares.get(sandbox_id)
        if share is None:
            share = self._shares[sandbox_id] = Share(self)
        return share

    def is_disk_low(self, wanted: int) -> bool:
        """Whether what is free is the host's. Looked at now and then, and each time while it is."""
        self._unlooked += wanted
        if self._low or self._unlooked > _LOOK_EVERY_BYTES:
            self._unlooked = 0
            self._low = self._free_bytes() <= 0
        return self._low

    def idle(self, command_id: CommandId, share: Share, size: int) -> None:
        """A command has ended: `size` bytes of it, counted already, may make room."""
        if size:
            self._of[command_id] = (share, size)
            share.put_in_line(command_id, size)

    def forget(self, command_id: CommandId) -> int:
        """Count a command's output no more: it is gone, or has a writer who counts it. How many bytes that was."""
        share, size = self._of.pop(command_id, (None, 0))
        if share is not None:
            share.remove(command_id, size)
        return size

    def empty(self, command_id: CommandId) -> int:
        """Remove an ended command's output, and leave its end. Blocks; how many bytes that was."""
        path = self._directory / command_id
        with suppress(OSError):  # what cannot be removed now is swept in its time
            for start in starts_in(path):
                remove_segment(path, start)
        return self.forget(command_id)

    def _find(self) -> None:
        """Count what an earlier process left. What has an end may make room, in the order of the ends."""
        ended: list[tuple[float, CommandId, Share, int]] = []
        for entry in self._directory.iterdir():
            command_id = CommandId(entry.name)
            starts = starts_in(entry) if is_id(entry.name, "cmd") else []
            header = next((header for start in starts if (header := read_header(entry, start)) is not None), None)
            if header is None:
                continue
            share, size = self.share(header.sandbox_id), sum(_size(entry, start) for start in starts)
            share.add(size)
            self._of[command_id] = (share, size)
            with suppress(FileNotFoundError):
                ended.append(((entry / "exit.json").stat().st_mtime, command_id, share, size))
        for _, command_id, share, size in sorted(ended, key=lambda each: each[:2]):
            self.idle(command_id, share, size)

    def _free(self) -> int:
        """Bytes that are not the host's. Where that cannot be told, writing will tell."""
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return 1
        return (disk.f_bavail - min(_RESERVE_BYTES // disk.f_frsize, disk.f_blocks // 20)) * disk.f_frsize


def _size(path: Path, start: int) -> int:
    size = 0
    for name in (output_path(path, start), index_path(path, start)):
        with suppress(FileNotFoundError):
            size += os.stat(name).st_size  # noqa: PTH116
    return size
