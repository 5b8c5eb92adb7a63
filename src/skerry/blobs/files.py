"""An object store in a directory of this host: one file an object, on the disk for good before `put` returns.

Not obstore's own local store: that one leaves an object in the page cache, and a power cut would take what the
archive has called verified.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from skerry.blobs.objects import checked_key, checked_prefix
from skerry.model.capture import Blob
from skerry.model.errors import NotFound, Unavailable

_UNFINISHED = ".unfinished"  # no key begins with a dot
_STALE_S = 3600.0


class FileObjects:
    """Objects below one directory, which is made for its owner alone where it is not there."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._unfinished = root / _UNFINISHED

    def put(self, key: str, data: bytes, *, create_only: bool = False) -> bool:
        target = self._root / checked_key(key)
        try:
            self._prepare(target.parent)
            return self._put(target, data, create_only)
        except OSError as error:
            raise _unavailable("written", error) from error

    def _put(self, target: Path, data: bytes, create_only: bool) -> bool:
        temporary = self._unfinished / os.urandom(12).hex()
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                _write_all(fd, data)
                os.fsync(fd)
            finally:
                os.close(fd)
            if create_only:
                os.link(temporary, target)
            else:
                temporary.replace(target)
        except FileExistsError:
            return False
        finally:
            with suppress(FileNotFoundError):
                temporary.unlink()
        _sync_directory(target.parent)
        return True

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        path = self._root / checked_key(key)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)  # a FIFO would wait for ever
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise NotFound(f"The object store has no {key}, but something else under its name.")
                end = status.st_size
                return _read(fd, start, end if length is None else min(end, start + length))
            finally:
                os.close(fd)
        except OSError as error:
            absent = error.errno in (errno.ENOENT, errno.EISDIR, errno.ENOTDIR)
            # A directory that is not there itself is a disk that is not mounted, and says nothing of what it holds.
            if absent and self._root.is_dir():
                raise NotFound(f"The object store has no {key}.") from None
            raise _unavailable("read", error) from error

    def delete(self, key: str) -> None:
        try:
            (self._root / checked_key(key)).unlink()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _unavailable("changed", error) from error

    def list(self, prefix: str) -> Iterator[Blob]:
        name = checked_prefix(prefix)
        base = self._root / name if name else self._root
        try:
            yield from self._below(base)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise _unavailable("listed", error) from error

    def _below(self, directory: Path) -> Iterator[Blob]:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith("."):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from self._below(Path(entry.path))
                    continue
                with suppress(FileNotFoundError):  # deleted meanwhile
                    status = entry.stat(follow_symlinks=False)
                    key = str(Path(entry.path).relative_to(self._root))
                    yield Blob(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))

    def _prepare(self, directory: Path) -> None:
        if not self._unfinished.is_dir():
            if not self._root.is_dir():
                _make_durably(self._root, 0o700)
            self._unfinished.mkdir(mode=0o700, exist_ok=True)
            _sync_directory(self._root)
        if not directory.is_dir():
            _make_durably(directory, 0o700)

    def tidy(self) -> None:
        """Remove what broken-off writes left an hour ago or earlier."""
        with suppress(OSError), os.scandir(self._unfinished) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < time.time() - _STALE_S:
                        Path(entry.path).unlink()


def _make_durably(directory: Path, mode: int) -> None:
    if not directory.parent.is_dir():
        _make_durably(directory.parent, mode)
    directory.mkdir(mode=mode, exist_ok=True)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _read(fd: int, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end and (part := os.pread(fd, end - start, start)):
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _unavailable(what: str, error: OSError) -> Unavailable:
    return Unavailable(f"The archive directory cannot be {what}: {error.strerror or error}.")
