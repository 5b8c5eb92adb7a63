"""A sandbox's tar stream into a local directory. The stream is hostile: names, links, sizes and counts are checked."""

import json
import os
from typing import Any, cast

from skerry.model.errors import LimitExceeded, ProtocolError
from skerry.sdk import tar
from skerry.sdk.placing import LeftOut, Place, split
from skerry.sdk.transfers import MAX_TOLD, Skipped, Tally, Transfer

MAX_ENTRIES = 500_000
MAX_BYTES = 100 << 30
_MAX_REMEMBERED = 16 << 20  # bytes of directories' names, for their times
_KINDS = {b"3": "a device", b"4": "a device", b"6": "a FIFO", tar.SPARSE: "a sparse file"}


class Unpacker:
    """Feed it the bytes as they come, then `finish`; `close` in any case. Blocks for as long as the disk takes.

    A file is there whole or not at all. What was there under its name is replaced; nothing is removed.
    """

    def __init__(self, root: str | os.PathLike[str], *, max_entries: int, max_bytes: int) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._place = Place(root)
        self._decoder = tar.Decoder(self)
        self._entry: tar.Entry | None = None  # the file that is being written
        self._seen = 0
        self._directories: list[tuple[list[bytes], int, int]] = []
        self._remembered = 0
        self._left_behind: tuple[list[Skipped], int] = ([], 0)
        self.tally = Tally()

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the stream.

        Raises:
            ProtocolError: It is no tar archive.
            LimitExceeded: It has more entries or bytes than allowed; what was placed stays.
            OSError: The local disk failed.
        """
        self._decoder.feed(data)

    def finish(self) -> Transfer:
        """What was placed, once the stream has ended.

        Raises:
            ProtocolError: It ended too early.
        """
        if not self._decoder.ended:
            raise ProtocolError("The archive broke off. What came whole is there.")
        for parts, mode, mtime_ns in reversed(self._directories):
            try:
                self._place.settle(parts, mode, mtime_ns)
            except LeftOut:
                continue  # a later entry has taken its place
        told, count = self._left_behind
        skipped = (*told, *self.tally.skipped)[:MAX_TOLD]
        return Transfer(self.tally.count, self.tally.size_bytes, skipped, count + self.tally.skipped_count)

    def close(self) -> None:
        self._place.close()

    def begin(self, entry: tar.Entry) -> None:
        self._seen += 1
        if self._seen > self._max_entries:
            raise LimitExceeded(f"The archive has more than {self._max_entries} entries (max_entries).", code="limit")
        if entry.size > self._max_bytes - self.tally.size_bytes:
            raise LimitExceeded(f"The archive has more than {self._max_bytes} bytes (max_bytes).", code="limit")
        try:
            self._begin(entry)
        except LeftOut as why:
            self.tally.leave_out(_shown(entry.name), str(why))

    def content(self, data: bytes) -> None:
        if self._entry is not None:
            self._place.write(data)
            self.tally.size_bytes += len(data)

    def end(self) -> None:
        entry, self._entry = self._entry, None
        if entry is None:
            return
        try:
            self._place.finish(entry.mode, entry.mtime_ns)
        except LeftOut as why:
            self.tally.size_bytes -= entry.size
            self.tally.leave_out(_shown(entry.name), str(why))
        else:
            self.tally.count += 1

    def _begin(self, entry: tar.Entry) -> None:
        parts = split(entry.name)
        if not parts:
            self._left_behind = _left_behind(entry.pax.get(b"SKERRY.skipped"))
            return
        if any(key.startswith(b"GNU.sparse.") for key in entry.pax):
            raise LeftOut("it is a sparse file")
        if entry.kind == tar.FILE:
            self._place.begin(parts)
            self._entry = entry
            return
        if entry.kind == tar.DIRECTORY:
            self._place.directory(parts)
            self._remember(parts, entry)
        elif entry.kind == tar.SYMLINK:
            self._place.symlink(parts, entry.link)
        elif entry.kind == tar.HARD_LINK:
            target = split(entry.link)
            if not target:
                raise LeftOut("it is a hard link to what is no file")
            self._place.hard_link(parts, target)
        else:
            raise LeftOut(f"it is {_KINDS.get(entry.kind, 'of an unknown type')}")
        self.tally.count += 1

    def _remember(self, parts: list[bytes], entry: tar.Entry) -> None:
        self._remembered += len(entry.name) + 200
        if self._remembered <= _MAX_REMEMBERED:
            self._directories.append((parts, entry.mode, entry.mtime_ns))


def _shown(name: bytes) -> str:
    return os.fsdecode(name[:4096])


def _left_behind(record: bytes | None) -> tuple[list[Skipped], int]:
    """What the sandbox's side has left out of the archive, and told in its last entry."""
    if record is None:
        return [], 0
    try:
        told: Any = json.loads(record)
        skipped = [Skipped(str(one["path"]), str(one["reason"])) for one in cast(list[Any], told["skipped"])]
        return skipped[:MAX_TOLD], max(len(skipped), int(told["skipped_count"]))
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return [], 1
