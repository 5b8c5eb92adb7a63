"""What the manifest had of a file when it was last seen, by inode: an archive then reads only what changed.

A hint and no more. A file counts as unchanged only if size, times and inode are what they were, and if its change time
lies well before the moment at which the tree was captured: a later write may have had the same time. A cache that is
damaged, cut off, or of another vault is as good as none.
"""

import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from skerry.blobs.keys import Keys
from skerry.blobs.manifest import named

RACY_NS = 1_000_000_000

_MAGIC = b"SKERSC\x02\x00"
_RECORD = struct.Struct("<QQqqI")  # inode, size, mtime, ctime, length of the manifest's records, which follow
_SUM_BYTES = 32
_MOST_A_FILE = 1 << 24  # a file of about 100 GB; a larger one is read again
_FLUSH = 1 << 20
_UNFINISHED = ".unfinished"


class StatCache:
    """What was written by a StatCacheWriter. Memory: the file, mapped, and two integers a file."""

    def __init__(self, data: bytes, places: dict[int, int]) -> None:
        self._data = data
        self._places = places

    def records(self, status: os.stat_result, name: bytes, group: bytes) -> bytes | None:
        """What the manifest had of a file of this status, name and group of links. None: it has to be read."""
        at = self._places.get(status.st_ino)
        if at is None:
            return None
        inode, size, mtime, ctime, length = _RECORD.unpack_from(self._data, at)
        if (
            inode != status.st_ino
            or ctime != status.st_ctime_ns
            or mtime != status.st_mtime_ns
            or size != status.st_size
        ):
            return None
        at += _RECORD.size
        records = self._data[at : at + length]
        return records if named(records, name, group) else None

    def __len__(self) -> int:
        return len(self._places)


def load(path: Path, keys: Keys) -> StatCache:
    """The cache at `path`; an empty one where there is none to rely on."""
    try:
        data = path.read_bytes()
    except OSError:
        return StatCache(b"", {})
    head = _MAGIC + keys.cache_seal
    end = len(data) - _SUM_BYTES
    if end < len(head) or not data.startswith(head) or blake3(memoryview(data)[:end]).digest() != data[end:]:
        return StatCache(b"", {})
    places: dict[int, int] = {}
    at = len(head)
    unpack, step = _RECORD.unpack_from, _RECORD.size
    while at < end:
        inode, _, _, _, length = unpack(data, at)
        places[inode] = at
        at += step + length
    return StatCache(data, places)


class StatCacheWriter:
    """Writes a cache beside the one that is there; `commit` puts it in its place. For one that is left: `discard`.

    Where it cannot be written (a full disk), there is none: no archive fails for a hint.
    """

    def __init__(self, path: Path, keys: Keys, *, trusted_before_ns: int) -> None:
        self._path = path
        self._unfinished = path.with_name(f".{os.getpid()}.{os.urandom(8).hex()}{_UNFINISHED}")
        self._sum = blake3()
        self._buffer = bytearray(_MAGIC + keys.cache_seal)
        self._trusted_before_ns = trusted_before_ns
        self._file: BinaryIO | None = None
        with suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            tidy(path.parent)
            self._file = self._unfinished.open("wb")

    def add(self, status: os.stat_result, records: bytes) -> None:
        """What the manifest has of a file of this status."""
        mtime, ctime = status.st_mtime_ns, status.st_ctime_ns
        odd = not -(1 << 63) <= mtime < 1 << 63  # a sandbox may set any
        if odd or ctime >= self._trusted_before_ns or len(records) > _MOST_A_FILE:
            return
        self._buffer += _RECORD.pack(status.st_ino, status.st_size, mtime, ctime, len(records)) + records
        if len(self._buffer) >= _FLUSH:
            self._flush()

    def commit(self) -> None:
        self._flush()
        if self._file is None:
            return
        try:
            self._file.write(self._sum.digest())
            self._file.close()
            self._unfinished.replace(self._path)
        except OSError:
            self.discard()

    def discard(self) -> None:
        """Safe to call at any time, also after `commit`."""
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            with suppress(OSError):
                self._unfinished.unlink()
            self._file = None

    def _flush(self) -> None:
        data = bytes(self._buffer)
        self._buffer.clear()
        self._sum.update(data)
        if self._file is not None:
            try:
                self._file.write(data)
            except OSError:
                self.discard()


def tidy(directory: Path) -> None:
    """Remove what workers left that were killed; each file names its worker. What cannot go now goes the next time."""
    with suppress(OSError):
        for file in directory.glob(f".*{_UNFINISHED}"):
            if not Path("/proc", file.name.split(".")[1]).exists():
                file.unlink(missing_ok=True)


def cache_path(cache_dir: Path, name: str) -> Path:
    return cache_dir / "stat" / name
