"""Files that a sandbox has named, placed below one local directory and nowhere else.

Every name is walked one component at a time from the directory's own descriptor and no symlink is followed, neither
one that was placed before nor one that was there: so no name and no race leads out. Linux and macOS.
"""

import errno
import os
import secrets
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from skerry.model.errors import Invalid

T = TypeVar("T")

MAX_DEPTH = 256
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Errors that speak of one entry; any other (a full disk, say) ends the whole.
_OF_ONE = frozenset(
    getattr(errno, name)
    for name in ("ENAMETOOLONG", "EEXIST", "ENOTDIR", "EISDIR", "ENOTEMPTY", "ELOOP", "EACCES", "EPERM", "EINVAL")
) | {errno.EILSEQ, errno.ENOENT, errno.EMLINK}


class LeftOut(Exception):
    """An entry cannot or must not be placed; the text says why. Never leaves the client."""


class Place:
    """The directory, made where it is missing. `close` leaves no half a file."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        try:
            Path(root).mkdir(parents=True, exist_ok=True)
            self._root = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError) as error:
            raise Invalid(f"{os.fspath(root)} is no directory.", field="local") from error
        self._parts: tuple[bytes, ...] = ()
        self._handle = self._root
        self._file: int | None = None
        self._part = b""
        self._name = b""

    def directory(self, parts: Sequence[bytes], *, make: bool = True) -> int:
        """A descriptor of the directory, valid until the next call."""
        wanted = tuple(parts)
        if wanted == self._parts:
            return self._handle
        if len(wanted) > MAX_DEPTH:
            raise LeftOut(f"it lies more than {MAX_DEPTH} levels deep")
        self._leave()
        handle = self._root
        try:
            for part in wanted:
                below = _enter(handle, part, make=make)
                if handle != self._root:
                    os.close(handle)
                handle = below
        except BaseException:
            if handle != self._root:
                os.close(handle)
            raise
        self._parts, self._handle = wanted, handle
        return handle

    def begin(self, parts: Sequence[bytes]) -> None:
        """Begin a file, under a name of its own until `finish`."""
        parent = self.directory(parts[:-1])
        self._part, self._name = _hidden(), parts[-1]
        self._file = _placed(lambda: os.open(self._part, _NEW, 0o600, dir_fd=parent))

    def write(self, data: bytes) -> None:
        """Add to the file that was begun."""
        assert self._file is not None
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._file, rest) :]

    def finish(self, mode: int, mtime_ns: int) -> None:
        """Put the file under its name, whole. Nobody else may write to it, and set-id bits are dropped."""
        assert self._file is not None
        try:
            os.fchmod(self._file, mode & 0o755)
            _stamp(self._file, mtime_ns)
            os.close(self._file)
            self._file = None
            self._show()
        except BaseException:
            self.drop()
            raise

    def drop(self) -> None:
        """Forget the file that was begun, if any."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        if self._part:
            with suppress(OSError):
                os.unlink(self._part, dir_fd=self._handle)
        self._part = b""

    def symlink(self, parts: Sequence[bytes], link: bytes) -> None:
        """Make a symlink that stays inside, whatever else is placed or was."""
        _check_link(len(parts) - 1, link)
        parent = self.directory(parts[:-1])
        self._part, self._name = _hidden(), parts[-1]
        try:
            _placed(lambda: os.symlink(link, self._part, dir_fd=parent))
            self._show()
        finally:
            self.drop()

    def hard_link(self, parts: Sequence[bytes], target: Sequence[bytes]) -> None:
        """Make a further name of a file that is there."""
        source = os.dup(self.directory(target[:-1], make=False))
        try:
            about = _placed(lambda: os.stat(target[-1], dir_fd=source, follow_symlinks=False))
            if not stat.S_ISREG(about.st_mode):
                raise LeftOut("it is a hard link to what is no file")
            parent = self.directory(parts[:-1])
            self._part, self._name = _hidden(), parts[-1]
            try:
                _placed(
                    lambda: os.link(target[-1], self._part, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
                )
                self._show()
            finally:
                self.drop()  # of two names of one file, rename leaves both
        finally:
            os.close(source)

    def settle(self, parts: Sequence[bytes], mode: int, mtime_ns: int) -> None:
        """Give a directory its mode and time, once nothing more is made in it."""
        handle = self.directory(parts, make=False)
        _placed(lambda: os.fchmod(handle, mode & 0o755 | 0o700))
        _stamp(handle, mtime_ns)

    def close(self) -> None:
        """Drop what is half, close what is open."""
        self.drop()
        self._leave()
        os.close(self._root)

    def _show(self) -> None:
        handle, part, name = self._handle, self._part, self._name
        _placed(lambda: os.rename(part, name, src_dir_fd=handle, dst_dir_fd=handle))

    def _leave(self) -> None:
        if self._handle != self._root:
            os.close(self._handle)
        self._parts, self._handle = (), self._root


def split(name: bytes) -> list[bytes]:
    """A name's components; none for the directory itself.

    Raises:
        LeftOut: It would lead out, or is no name.
    """
    if name.startswith(b"/"):
        raise LeftOut("its name is absolute")
    if b"\0" in name:
        raise LeftOut("its name holds a NUL")
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise LeftOut("its name leads upwards")
    if len(parts) > MAX_DEPTH:
        raise LeftOut(f"it lies more than {MAX_DEPTH} levels deep")
    return parts


def _check_link(depth: int, link: bytes) -> None:
    """First up, then down, and never above the top: so each step of following it is inside.

    Up again after down is refused: what lies down may be a symlink, and `..` is then another directory's parent.
    """
    if not link or b"\0" in link:
        raise LeftOut("it is a symlink to nothing")
    if link.startswith(b"/"):
        raise LeftOut("it is a symlink to an absolute path")
    steps = [step for step in link.split(b"/") if step not in (b"", b".")]
    up = 0
    while up < len(steps) and steps[up] == b"..":
        up += 1
    if up > depth:
        raise LeftOut("it is a symlink that leads out")
    if b".." in steps[up:]:
        raise LeftOut("it is a symlink that goes down and up again")


def _enter(parent: int, name: bytes, *, make: bool) -> int:
    try:
        return _open_directory(parent, name)
    except FileNotFoundError:
        if not make:
            raise LeftOut("it leads to nothing") from None
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise LeftOut("it leads through a symlink or a file") from error
        raise _judged(error) from error
    with suppress(FileExistsError):
        _placed(lambda: os.mkdir(name, 0o755, dir_fd=parent))
    return _placed(lambda: _open_directory(parent, name))


def _open_directory(parent: int, name: bytes) -> int:
    """Not through a symlink, on gVisor either, whose open follows one where O_DIRECTORY is asked for, too."""
    handle = os.open(name, _DIRECTORY, dir_fd=parent)
    try:
        if os.path.samestat(os.fstat(handle), os.stat(name, dir_fd=parent, follow_symlinks=False)):
            return handle
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    except BaseException:
        os.close(handle)
        raise


def _hidden() -> bytes:
    return b".skerry-%b.part" % secrets.token_hex(8).encode()


def _stamp(handle: int, mtime_ns: int) -> None:
    with suppress(OSError, OverflowError):  # a time that this file system cannot keep
        os.utime(handle, ns=(mtime_ns, mtime_ns))


def _placed(act: Callable[[], T]) -> T:
    try:
        return act()
    except OSError as error:
        raise _judged(error) from error


def _judged(error: OSError) -> Exception:
    return LeftOut(error.strerror or "it cannot be made") if error.errno in _OF_ONE else error
