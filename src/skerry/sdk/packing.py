"""A local directory as a tar stream, a piece at a time. Sends nothing itself; follows no symlink below the top."""

import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from posixpath import commonpath, dirname, normpath
from typing import cast

from skerry.model.errors import Invalid, NotFound
from skerry.sdk import tar
from skerry.sdk.transfers import Tally

PIECE = 262_144
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_STRANGE = {stat.S_IFSOCK: "a socket", stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}

Exclude = Iterable[str] | Callable[[str], bool]
"""Patterns such as `*.pyc` or `build/out`, of a name or a path below the directory; or a function of that path."""


class Packer:
    """Iterate once. `tally.size_bytes` is what was read so far; what could not be sent is told in `tally`."""

    def __init__(self, root: str | os.PathLike[str], exclude: Exclude = ()) -> None:
        self._root = os.fspath(root)
        self._excluded = _chooser(exclude)
        self.tally = Tally()
        self._held = bytearray()
        if not Path(self._root).exists():
            raise NotFound(f"There is no {self._root} on this machine.", field="local")
        if not Path(self._root).is_dir():
            raise Invalid(f"{self._root} is no directory. `upload` sends a single file.", field="local")

    def size(self) -> int:
        """Bytes of content that would be sent now."""
        found = 0
        for entry, _ in self._walk("", Tally()):
            if entry.is_file(follow_symlinks=False):
                found += entry.stat(follow_symlinks=False).st_size
        return found

    def __iter__(self) -> Iterator[bytes]:
        for entry, path in self._walk("", self.tally):
            try:
                yield from self._entry(entry, path)
            except OSError as error:
                self.tally.leave_out(path, _why(error))
            if len(self._held) >= PIECE:
                yield self._flush()
        self._held += tar.END
        yield self._flush()

    def _walk(self, below: str, tally: Tally) -> Iterator[tuple["os.DirEntry[str]", str]]:
        try:
            with os.scandir(f"{self._root}/{below}") as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            if not below:
                raise
            tally.leave_out(below, _why(error))
            return
        for entry in entries:
            path = f"{below}{entry.name}"
            if self._excluded(path):
                continue
            yield entry, path
            if entry.is_dir(follow_symlinks=False):
                yield from self._walk(f"{path}/", tally)

    def _entry(self, entry: "os.DirEntry[str]", path: str) -> Iterator[bytes]:
        about = entry.stat(follow_symlinks=False)
        name, mode = os.fsencode(path), stat.S_IMODE(about.st_mode) & 0o777
        if entry.is_symlink():
            link = os.fsencode(Path(entry.path).readlink())
            self._add(tar.Entry(name, tar.SYMLINK, mode=0o777, mtime_ns=about.st_mtime_ns, link=link))
        elif stat.S_ISDIR(about.st_mode):
            self._add(tar.Entry(name + b"/", tar.DIRECTORY, mode=mode, mtime_ns=about.st_mtime_ns))
        elif stat.S_ISREG(about.st_mode):
            yield from self._file(entry.path, name, path)
        else:
            self.tally.leave_out(path, f"it is {_STRANGE.get(stat.S_IFMT(about.st_mode), 'no file')}")

    def _add(self, entry: tar.Entry) -> None:
        self._held += tar.header(entry)
        self.tally.count += 1

    def _file(self, source: str, name: bytes, path: str) -> Iterator[bytes]:
        handle = os.open(source, _READ)
        try:
            about = os.fstat(handle)
            if not stat.S_ISREG(about.st_mode):
                self.tally.leave_out(path, "it was replaced meanwhile")
                return
            mode = stat.S_IMODE(about.st_mode) & 0o777
            self._add(tar.Entry(name, size=about.st_size, mode=mode, mtime_ns=about.st_mtime_ns))
            left = about.st_size
            while left:
                piece = self._read(handle, min(left, PIECE))
                if not piece:  # its length stands in the header already
                    self.tally.leave_out(path, "it shrank meanwhile: the rest was sent as zeros")
                    yield from self._zeros(left)
                    break
                left -= len(piece)
                self.tally.size_bytes += len(piece)
                self._held += piece
                if len(self._held) >= PIECE:
                    yield self._flush()
            self._held += tar.padding(about.st_size)
        finally:
            os.close(handle)

    def _read(self, handle: int, count: int) -> bytes:
        try:
            return os.read(handle, count)
        except OSError:
            return b""  # told as what shrank: an entry that has begun cannot be taken back

    def _zeros(self, left: int) -> Iterator[bytes]:
        while left:
            count = min(left, PIECE)
            self._held += bytes(count)
            left -= count
            yield self._flush()

    def _flush(self) -> bytes:
        piece = bytes(self._held)
        self._held.clear()
        return piece


Contents = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]]


def pack_many(files: Contents, mode: str) -> tuple[str, bytes]:
    """Contents in memory as one archive, and the directory inside that its names are below.

    Raises:
        Invalid: A path is empty or leads up, or the mode is none.
    """
    pairs = cast(Mapping[str, bytes | str], files).items() if isinstance(files, Mapping) else files
    bits = _octal(mode)
    placed: dict[str, bytes] = {}
    for path, content in pairs:
        placed[_absolute(path)] = content.encode() if isinstance(content, str) else bytes(content)
    if not placed:
        return "/workspace", tar.END
    base = commonpath([dirname(path) for path in placed])
    cut = len(base.rstrip("/")) + 1
    held, now_ns = bytearray(), int(time.time()) * 1_000_000_000
    # By directory: whoever unpacks stays in one as long as it can.
    for path, content in sorted(placed.items(), key=lambda pair: dirname(pair[0])):
        held += tar.header(tar.Entry(_exact(path[cut:]), size=len(content), mode=bits, mtime_ns=now_ns))
        held += content
        held += tar.padding(len(content))
    return base, bytes(held) + tar.END


def _absolute(path: str) -> str:
    if not path or path.endswith("/") or "\0" in path or ".." in path.split("/"):
        raise Invalid(f"{path!r} is no path of a file: it must not be empty, end in '/' or hold '..'.", field="files")
    whole = normpath(path if path.startswith("/") else f"/workspace/{path}")
    return "/" + whole.lstrip("/")


def _exact(path: str) -> bytes:
    try:
        return os.fsencode(path)
    except UnicodeEncodeError as error:
        raise Invalid(f"{path!r} holds a lone surrogate that stands for no byte.", field="files") from error


def _octal(mode: str) -> int:
    if not mode.isdigit() or len(mode) > 4 or set(mode) - set("01234567"):
        raise Invalid(f"{mode!r} is no mode. One is octal text, such as '0644'.", field="mode")
    return int(mode, 8)


def _chooser(exclude: Exclude) -> Callable[[str], bool]:
    if callable(exclude):
        return exclude
    if isinstance(exclude, str):
        raise Invalid("exclude is a list of patterns, such as ['*.pyc'].", field="exclude")
    patterns = [pattern.rstrip("/") for pattern in exclude]

    def excluded(path: str) -> bool:
        name = path.rpartition("/")[2]
        return any(fnmatchcase(name, one) or fnmatchcase(path, one) for one in patterns)

    return excluded


def _why(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or type(error).__name__}"
