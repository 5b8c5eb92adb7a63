"""Whole directories of a running sandbox, as tar streams, and watching them. Tar is read and written inside alone."""

import tarfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from skerry.control.deps import Deps
from skerry.control.files import absolute
from skerry.model.errors import Invalid
from skerry.model.files import Archived, ArchiveLimits, FileChange
from skerry.seams import ArchiveReader, Guest

MAX_ENTRIES = 500_000  # of one archive, both ways
MAX_BATCH = 10_000  # files in one JSON body
_PIECE = 262_144
_MOST_PLAIN = 8**11  # what eleven octal digits cannot say
_END = bytes(1024)


@dataclass(frozen=True, slots=True)
class NewFile:
    """One file of a batch: its path below the batch's directory."""

    path: str
    content: bytes
    mode: int = 0o644


def limits(deps: Deps) -> ArchiveLimits:
    """What comes down can go up again: one limit for both."""
    return ArchiveLimits(MAX_ENTRIES, deps.config.upload_limit_mb * 1024 * 1024)


def pack(deps: Deps, guest: Guest, path: str) -> AbstractAsyncContextManager[ArchiveReader]:
    return guest.pack(absolute(path), limits(deps))


async def unpack(deps: Deps, guest: Guest, path: str, chunks: AsyncIterator[bytes]) -> Archived:
    """Unpack a tar stream below a directory. Not all or nothing: files are whole, and what was skipped is told."""
    return await guest.unpack(absolute(path), chunks, limits(deps))


async def write_batch(deps: Deps, guest: Guest, path: str, files: Sequence[NewFile]) -> Archived:
    """Write many files below a directory in one go, as `unpack` does.

    Raises:
        Invalid: A path is not below the directory, or there are too many.
    """
    if len(files) > MAX_BATCH:
        raise Invalid(
            f"One call writes {MAX_BATCH} files at most. Send a tar stream with PUT …/files/tar.", field="files"
        )
    for number, file in enumerate(files):
        absolute(file.path, f"files.{number}.path")
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise Invalid("A file's path is relative to 'path' and has no '..'.", field=f"files.{number}.path")
    mtime_s = int(deps.clock.now().timestamp())
    return await guest.unpack(absolute(path), _archive(files, mtime_s), limits(deps))


async def _archive(files: Sequence[NewFile], mtime_s: int) -> AsyncIterator[bytes]:
    held = bytearray()
    # By directory: whoever unpacks stays in one as long as it can. Of equal paths the last still counts.
    for file in sorted(files, key=lambda file: file.path.rpartition("/")[0]):
        held += _header(file, mtime_s)
        held += file.content
        held += bytes(-len(file.content) % tarfile.BLOCKSIZE)
        if len(held) >= _PIECE:
            yield bytes(held)
            held.clear()
    yield bytes(held) + _END


def _header(file: NewFile, mtime_s: int) -> bytes:
    name = file.path.encode("utf-8", "surrogateescape")
    if len(name) > tarfile.LENGTH_NAME or len(file.content) >= _MOST_PLAIN:
        info = tarfile.TarInfo(file.path)
        info.size, info.mode, info.mtime = len(file.content), file.mode, mtime_s
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    # As TarInfo would make it, at a tenth of the time.
    numbers = b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (file.mode, 0, 0, len(file.content), mtime_s)
    begin = name.ljust(100, b"\0") + numbers
    end = b"0".ljust(101, b"\0") + b"ustar\x0000"
    checksum = sum(begin) + 8 * 0x20 + sum(end)
    return (begin + b"%06o\0 " % checksum + end).ljust(tarfile.BLOCKSIZE, b"\0")


def watch(guest: Guest, path: str, *, recursive: bool) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]:
    return guest.watch(absolute(path), recursive=recursive)
