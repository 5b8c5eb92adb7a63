"""A tree, read: the manifest's records in their order, and the files' content into the vault.

The tree is hostile and does not change meanwhile. What is opened is what was looked at, or the archive ends. What no
archive holds (sockets, FIFOs, devices, whatever is mounted in the tree) is counted and left out.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from blake3 import blake3

from skerry.blobs import content, manifest
from skerry.blobs.attributes import read_xattrs
from skerry.blobs.descent import OPEN_DIRECTORY, Descent
from skerry.blobs.keys import ID_BYTES
from skerry.blobs.limits import Limits, over, within
from skerry.blobs.manifest import AGAIN, END_RECORD, GROUP_BYTES, LINKED, MODE_BITS, PIECE, Entry, Kind
from skerry.blobs.stat_cache import StatCache, StatCacheWriter
from skerry.blobs.writer import ChunkWriter
from skerry.model.errors import Unavailable

_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# What a snapshot of a btrfs subvolume shows where another subvolume was: an empty directory of this number.
_LOST_SUBVOLUME_INODE = 2
_ID_AT = PIECE.size - ID_BYTES
_TELL_BYTES = 1 << 18


@dataclass(slots=True)
class Totals:
    """What was found. `size_bytes` is of the files' data: holes are free, and a file of several names counts once."""

    entries: int = 0
    size_bytes: int = 0
    skipped: int = 0
    dropped_xattrs: int = 0


@dataclass(slots=True)
class _Directory:
    names: Iterator[bytes]
    trail: bytes  # a hash of the path, which names groups of hard links


@dataclass(frozen=True, slots=True)
class Tools:
    """What a reader works with."""

    writer: ChunkWriter
    seen: StatCache
    seeing: StatCacheWriter
    cut_seed: int
    limits: Limits
    progress: Callable[[int], None]  # is told how many bytes of files are done


class TreeReader:
    """Reads one tree, once."""

    def __init__(self, root_fd: int, tools: Tools) -> None:
        self.totals = Totals()
        self._tools = tools
        self._limits = within(tools.limits, root_fd)
        self._cutter = content.new_cutter(tools.cut_seed)
        self._groups: dict[tuple[int, int], bytes] = {}
        self._noatime = os.O_NOATIME
        self._untold = 0
        self._pending = 0  # names that were listed and not yet read
        status = os.fstat(root_fd)
        self._root = status
        self._mount: bytes | None = None
        self._descent = Descent(root_fd, _Directory(iter(()), b""), tools.limits)

    def records(self) -> Iterator[bytes]:
        """The manifest, record by record.

        Raises:
            Refused: A limit; named in the message.
            Unavailable: The store's, or the tree changed.
            OSError: The tree cannot be read.
        """
        descent = self._descent
        try:
            descent.here.data = self._list(descent.here.fd, b"")
            yield self._directory_record(descent.here.fd, self._root, b"")
            while descent.levels:
                level = descent.here
                for name in level.data.names:
                    self._pending -= 1
                    record = self._entry(level.fd, name, level.data.trail)
                    if record is not None:
                        yield record
                    if descent.here is not level:
                        break  # a directory: what is in it comes next
                else:
                    descent.leave()
                    yield END_RECORD
        finally:
            descent.close()

    def _entry(self, fd: int, name: bytes, trail: bytes) -> bytes | None:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            return self._directory(fd, name, status, trail)
        if kind not in (stat.S_IFREG, stat.S_IFLNK):
            self.totals.skipped += 1
            return None
        self.totals.entries += 1
        group = b""
        if status.st_nlink > 1:
            identity = status.st_dev, status.st_ino
            if identity in self._groups:
                again = Kind.FILE if kind == stat.S_IFREG else Kind.SYMLINK
                return manifest.record(Entry(again, LINKED | AGAIN, name=name, group=self._groups[identity]))
            group = self._groups[identity] = blake3(trail + name).digest()[:GROUP_BYTES]
        if kind == stat.S_IFREG:
            return self._file(fd, name, status, group)
        return self._symlink(fd, name, status, group)

    def _directory(self, fd: int, name: bytes, status: os.stat_result, trail: bytes) -> bytes | None:
        opened = self._open(name, fd, OPEN_DIRECTORY, status)
        if status.st_dev != self._root.st_dev and not self._same_mount(opened):
            os.close(opened)
            self.totals.skipped += 1
            return None
        if status.st_ino == _LOST_SUBVOLUME_INODE:
            self.totals.skipped += 1  # kept as the empty directory that it is here; what was in it is not
        self.totals.entries += 1
        try:
            record = self._directory_record(opened, status, name)
            listed = self._list(opened, blake3(trail + name + b"/").digest())
        except BaseException:
            os.close(opened)
            raise
        self._descent.enter(opened, name, listed)
        return record

    def _directory_record(self, fd: int, status: os.stat_result, name: bytes) -> bytes:
        return manifest.record(self._noted(Kind.DIRECTORY, status, name, xattrs=self._xattrs(fd, name)))

    def _symlink(self, fd: int, name: bytes, status: os.stat_result, group: bytes) -> bytes:
        target = os.readlink(name, dir_fd=fd)
        return manifest.record(self._noted(Kind.SYMLINK, status, name, group=group, target=target))

    def _noted(
        self,
        kind: Kind,
        status: os.stat_result,
        name: bytes,
        *,
        xattrs: bytes = b"",
        group: bytes = b"",
        target: bytes = b"",
    ) -> Entry:
        return Entry(
            kind,
            LINKED if group else 0,
            status.st_mode & MODE_BITS,
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            name,
            group,
            xattrs,
            target,
        )

    def _file(self, fd: int, name: bytes, status: os.stat_result, group: bytes) -> bytes:
        # Inodes of another subvolume within the tree may have the numbers of this one.
        cachable = status.st_dev == self._root.st_dev
        records = self._tools.seen.records(status, name, group) if cachable else None
        size = self._known_size(records) if records is not None else None
        if records is None or size is None:
            status, tail, size, dropped = self._read_file(fd, name, status)
            records = manifest.file_records(status, name, group, tail)
            cachable = cachable and not dropped
        if cachable:
            self._tools.seeing.add(status, records)
        self._require_bytes(size, name)
        self.totals.size_bytes += size
        self._untold += size
        if self._untold >= _TELL_BYTES:
            self._tools.progress(self._untold)
            self._untold = 0
        return records

    def _known_size(self, records: bytes) -> int | None:
        """The bytes of data, if the vault still has all of it."""
        have, size = self._tools.writer.have, 0
        for places in manifest.pieces_of(records):
            for at in places:
                if not have(records[at + _ID_AT : at + PIECE.size]):
                    return None
                size += int.from_bytes(records[at + 8 : at + 12], "little")
        return size

    def _read_file(
        self, fd: int, name: bytes, looked_at: os.stat_result
    ) -> tuple[os.stat_result, tuple[int, bytes], int, bool]:
        opened = self._open(name, fd, _OPEN_FILE, looked_at)
        try:
            status = os.fstat(opened)
            before = self.totals.dropped_xattrs
            xattrs = self._xattrs(opened, name)
            packed: list[bytes] = []
            size, add, pack = 0, self._tools.writer.add, PIECE.pack
            for hole, data in content.pieces(opened, status.st_size, self._cutter):
                packed.append(pack(hole, len(data), add(data)))
                size += len(data)
                self._require_bytes(size, name)
                if len(packed) > self._limits.file_pieces:
                    raise over("file_pieces", self._limits.file_pieces, self._descent.where(name))
        finally:
            os.close(opened)
        tail = xattrs + manifest.pack_content(status.st_size, packed)
        return status, (len(xattrs), tail), size, self.totals.dropped_xattrs > before

    def _require_bytes(self, more: int, name: bytes) -> None:
        if self.totals.size_bytes + more > self._limits.tree_bytes:
            raise over("tree_bytes", self._limits.tree_bytes, self._descent.where(name))

    def _xattrs(self, fd: int, name: bytes) -> bytes:
        packed, dropped = read_xattrs(fd)
        self.totals.dropped_xattrs += dropped
        if len(packed) > self._limits.xattr_bytes:
            raise over("xattr_bytes", self._limits.xattr_bytes, self._descent.where(name))
        return packed

    def _list(self, fd: int, trail: bytes) -> _Directory:
        names: list[bytes] = []
        most = self._limits.entries - self.totals.entries - self._pending
        with os.scandir(fd) as found:
            for entry in found:
                names.append(os.fsencode(entry.name))
                if len(names) > most:
                    raise over("entries", self._limits.entries)
        self._pending += len(names)
        return _Directory(iter(sorted(names)), trail)

    def _open(self, name: bytes, dir_fd: int, flags: int, looked_at: os.stat_result) -> int:
        try:
            fd = os.open(name, flags | self._noatime, dir_fd=dir_fd)
        except OSError as error:
            if error.errno != errno.EPERM or not self._noatime:
                raise
            self._noatime = 0  # only a file's owner may ask for it
            return self._open(name, dir_fd, flags, looked_at)
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino, status.st_mode) != (looked_at.st_dev, looked_at.st_ino, looked_at.st_mode):
            os.close(fd)
            raise Unavailable(
                "A file was replaced while its tree was archived; the tree has to be left alone meanwhile."
            )
        return fd

    def _same_mount(self, fd: int) -> bool:
        """Another device in the same mount is a subvolume, which a sandbox may make: a directory like any other."""
        if self._mount is None:
            self._mount = _mount_of(self._descent.levels[0].fd)
        return _mount_of(fd) == self._mount


def _mount_of(fd: int) -> bytes:
    info = os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return next(line for line in os.read(info, 4096).splitlines() if line.startswith(b"mnt_id:"))
    finally:
        os.close(info)
