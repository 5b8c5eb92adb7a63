"""The entries of a manifest, made: by descriptors, in a directory that nobody else writes to.

One pass is enough: a name is made only where there is none, directories are opened without following links, and no
name has a slash in it, so no link that the archive brings can lead anything elsewhere. Owner comes before mode: a
change of owner would clear setuid, and a mode that came first would for a moment belong to somebody else. The pool is
`nosuid`, so the bits mean nothing on the host. A directory's times come when it is complete.
"""

import os

from skerry.blobs import manifest
from skerry.blobs.attributes import write_xattrs
from skerry.blobs.descent import OPEN_DIRECTORY, Descent
from skerry.blobs.limits import Limits, damaged
from skerry.blobs.manifest import AGAIN, LINKED, PIECE, Entry, Kind
from skerry.blobs.stat_cache import StatCacheWriter

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class TreePlacer:
    """Makes one tree. `place` entries in order, `write` the pieces after their file, then `finish`."""

    def __init__(self, into_fd: int, cache: StatCacheWriter, limits: Limits) -> None:
        self._descent: Descent[Entry | None] = Descent(into_fd, None, limits)
        self._cache = cache
        self._file: tuple[int, Entry] | None = None
        self._at = 0
        self._pieces: list[bytes] = []
        self._links: tuple[int, str] | None = None  # a directory with one name of each group of links
        self._linked: set[bytes] = set()
        self._entries = 0
        self.latest_ctime_ns = 0

    def place(self, entry: Entry) -> None:
        """Raises Refused where the manifest is none; OSError."""
        if entry.kind is Kind.PIECES:
            if self._file is None:
                raise damaged("the manifest has pieces of no file")
            return
        self._close_file()
        if not self._descent.levels:
            raise damaged("the manifest goes on after its end")
        if entry.kind is Kind.END:
            self._leave()
            return
        if self._descent.here.data is None:
            self._begin(entry)
            return
        _check_name(entry.name)
        self._entries += 1
        try:
            self._make(self._descent.here.fd, entry)
        except FileExistsError:
            raise damaged("the manifest has a name twice") from None

    def write(self, hole: int, data: memoryview, chunk_id: bytes) -> None:
        """The next piece of the file that was placed last, after a hole."""
        if self._file is None:
            raise damaged("the manifest has pieces of no file")
        fd, entry = self._file
        self._pieces.append(PIECE.pack(hole, len(data), chunk_id))
        self._at += hole
        if self._at + len(data) > entry.size:
            raise damaged("the manifest has a file that is longer than it says")
        while data:
            written = os.pwrite(fd, data, self._at)
            self._at += written
            data = data[written:]

    def finish(self, entries: int) -> None:
        """Raises Refused where the tree is not complete."""
        if self._descent.levels or self._file is not None or self._entries != entries:
            raise damaged("the manifest ends too early")

    def close(self) -> None:
        """Give all descriptors back. Safe to call twice."""
        if self._file is not None:
            os.close(self._file[0])
            self._file = None
        if self._links is not None:
            os.close(self._links[0])
            self._links = None
        self._descent.close()

    def _begin(self, entry: Entry) -> None:
        if entry.kind is not Kind.DIRECTORY or entry.name:
            raise damaged("the manifest does not begin with its root")
        self._descent.here.data = entry

    def _make(self, fd: int, entry: Entry) -> None:
        if entry.flags & AGAIN:
            self._link_again(fd, entry)
        elif entry.kind is Kind.DIRECTORY:
            os.mkdir(entry.name, 0o700, dir_fd=fd)
            self._descent.enter(os.open(entry.name, OPEN_DIRECTORY, dir_fd=fd), entry.name, entry)
        elif entry.kind is Kind.FILE:
            self._file = os.open(entry.name, _NEW_FILE, 0o600, dir_fd=fd), entry
            self._at = 0
            self._pieces.clear()
        else:
            _check_target(entry.target)
            os.symlink(entry.target, entry.name, dir_fd=fd)
            os.chown(entry.name, entry.uid, entry.gid, dir_fd=fd, follow_symlinks=False)
            os.utime(entry.name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)
        if entry.flags & LINKED and not entry.flags & AGAIN:
            self._link_first(fd, entry)

    def _close_file(self) -> None:
        if self._file is None:
            return
        fd, entry = self._file
        try:
            if self._at != entry.size:
                os.ftruncate(fd, entry.size)
            _set_attributes(fd, entry)
            status = os.fstat(fd)
        finally:
            self._file = None
            os.close(fd)
        self.latest_ctime_ns = max(self.latest_ctime_ns, status.st_ctime_ns)
        if not entry.flags & LINKED:  # one more name of it is a change
            tail = entry.xattrs + manifest.pack_content(entry.size, self._pieces)
            self._cache.add(status, len(entry.xattrs), tail)

    def _leave(self) -> None:
        level = self._descent.here
        if level.data is None:
            raise damaged("the manifest does not begin with its root")
        if len(self._descent.levels) == 1:
            self._remove_links(level.fd)
        _set_attributes(level.fd, level.data)
        self._descent.leave()

    def _link_first(self, fd: int, entry: Entry) -> None:
        """Keep one more name, known by the group, for as long as the tree is being made.

        The group's path might be of any length, and to walk it again would be to trust it again.
        """
        if self._links is None:
            name = f".skerry-links-{os.urandom(8).hex()}"
            root_fd = self._descent.levels[0].fd
            os.mkdir(name, 0o700, dir_fd=root_fd)
            self._links = os.open(name, OPEN_DIRECTORY, dir_fd=root_fd), name
        self._linked.add(entry.group)
        os.link(entry.name, entry.group.hex(), src_dir_fd=fd, dst_dir_fd=self._links[0], follow_symlinks=False)

    def _link_again(self, fd: int, entry: Entry) -> None:
        if self._links is None or entry.group not in self._linked:
            raise damaged("the manifest has a hard link to nothing")
        os.link(entry.group.hex(), entry.name, src_dir_fd=self._links[0], dst_dir_fd=fd, follow_symlinks=False)

    def _remove_links(self, root_fd: int) -> None:
        if self._links is None:
            return
        fd, name = self._links
        self._links = None
        try:
            for group in self._linked:
                os.unlink(group.hex(), dir_fd=fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=root_fd)


def _set_attributes(fd: int, entry: Entry) -> None:
    os.fchown(fd, entry.uid, entry.gid)
    os.fchmod(fd, entry.mode)
    if entry.xattrs:
        write_xattrs(fd, entry.xattrs)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def _check_name(name: bytes) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > 255:
        raise damaged("the manifest has a name that is none")


def _check_target(target: bytes) -> None:
    if not target or b"\0" in target:
        raise damaged("the manifest has a link to nothing")
