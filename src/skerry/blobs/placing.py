"""The entries of a manifest, made: by descriptors, in a directory that nobody else writes to.

One pass is enough: a name is made only where there is none, directories are opened without following links, and no
name has a slash in it, so no link that the archive brings can lead anything elsewhere. Files are made with the
permissions that they will have, but never with setuid, setgid or sticky: those come when the owner is right. The pool
is `nosuid`, so the bits mean nothing on the host. A directory's attributes come when it is complete.
"""

import os
from collections.abc import Sequence

from skerry.blobs.attributes import PERMISSIONS, set_attributes
from skerry.blobs.descent import OPEN_DIRECTORY, Descent
from skerry.blobs.filling import Filler, Part, Run
from skerry.blobs.limits import Limits, damaged
from skerry.blobs.manifest import AGAIN, LINKED, Entry, Kind

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_BATCH_FILES, _BATCH_BYTES = 16, 1 << 20


class TreePlacer:
    """Makes one tree. `place` entries in order, each with (the first of) its data, then `finish`."""

    def __init__(self, into_fd: int, filler: Filler, limits: Limits) -> None:
        self._descent: Descent[Entry | None] = Descent(into_fd, None, limits)
        self._filler = filler
        self._file: tuple[int, Entry] | None = None  # the one that was placed last
        self._runs: list[Run] = []  # of it
        self._parts: list[Part] = []  # of those before; what the filler has still to be given
        self._bytes = 0
        self._links: tuple[int, str] | None = None  # a directory with one name of each group of links
        self._linked: set[bytes] = set()
        self._entries = 0

    def place(self, entry: Entry, runs: Sequence[Run]) -> None:
        """The next entry, or with Kind.PIECES more of the file before it.

        Raises:
            Refused: The manifest is none.
            Refused, Unavailable, OSError: What went wrong with a file that was placed before.
        """
        if entry.kind is not Kind.PIECES:
            self._close_file()
            self._place(entry)
        if runs:
            self._add(runs)

    def _place(self, entry: Entry) -> None:
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

    def _add(self, runs: Sequence[Run]) -> None:
        if self._file is None:
            raise damaged("the manifest has pieces of no file")
        self._runs += runs
        self._bytes += sum(run.chunk.spot.length for run in runs)
        if self._bytes >= _BATCH_BYTES:
            self._end_part(last=False)
            self._hand_over()

    def _close_file(self) -> None:
        if self._file is not None:
            self._end_part(last=True)
            self._file = None
            if len(self._parts) >= _BATCH_FILES:
                self._hand_over()

    def _end_part(self, *, last: bool) -> None:
        assert self._file is not None
        fd, entry = self._file
        self._parts.append(Part(fd, entry, self._runs, last))
        self._runs = []

    def _hand_over(self) -> None:
        parts, self._parts, self._bytes = self._parts, [], 0
        if parts:
            self._filler.put(parts)

    def finish(self, entries: int) -> None:
        """Return when all is written. Raises Refused where the tree is not complete; what else: as `place`."""
        if self._descent.levels or self._file is not None or self._entries != entries:
            raise damaged("the manifest ends too early")
        self._hand_over()
        self._filler.finish()

    def close(self) -> None:
        """Give all descriptors back, of what the filler has, too. Safe to call twice."""
        self._filler.close()
        fds = {part.fd for part in self._parts}
        if self._file is not None:
            fds.add(self._file[0])
            self._file = None
        self._parts = []
        if self._links is not None:
            fds.add(self._links[0])
            self._links = None
        for fd in fds:
            os.close(fd)
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
            self._file = os.open(entry.name, _NEW_FILE, entry.mode & PERMISSIONS, dir_fd=fd), entry
        else:
            _check_target(entry.target)
            os.symlink(entry.target, entry.name, dir_fd=fd)
            os.chown(entry.name, entry.uid, entry.gid, dir_fd=fd, follow_symlinks=False)
            os.utime(entry.name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=fd, follow_symlinks=False)
        if entry.flags & LINKED and not entry.flags & AGAIN:
            self._link_first(fd, entry)

    def _leave(self) -> None:
        level = self._descent.here
        if level.data is None:
            raise damaged("the manifest does not begin with its root")
        if len(self._descent.levels) == 1:
            self._remove_links(level.fd)
        set_attributes(level.fd, level.data)
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


def _check_name(name: bytes) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > 255:
        raise damaged("the manifest has a name that is none")


def _check_target(target: bytes) -> None:
    if not target or b"\0" in target:
        raise damaged("the manifest has a link to nothing")
