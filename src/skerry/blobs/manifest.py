"""The list of a tree: a record an entry, depth first, names in the order of their bytes, directories closed by END.

It is cut into chunks like a file, so that a tree that hardly changed costs hardly anything: no record holds anything
that a change elsewhere would change (no inode number, no count, no offset in a file).
"""

import os
import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from pyfastcdc import FastCDC

from skerry.blobs.keys import ID_BYTES, Data
from skerry.blobs.limits import LIMITS, Limits, damaged, over
from skerry.blobs.writer import ChunkWriter

GROUP_BYTES = 16
PIECES_A_RECORD = 1024
MODE_BITS = 0o7777

# Bytes that follow this word, kind, flags, mode, uid, gid, seconds and nanoseconds of mtime (btrfs holds any second of
# 64 bits, and a sandbox may set any), length of the name, of the attributes.
HEAD = struct.Struct("<IBBHIIqIHI")
PIECE = struct.Struct(f"<QI{ID_BYTES}s")  # hole before it, length, chunk id
_SIZE = struct.Struct("<Q")
_XATTR = struct.Struct("<HI")

LINKED = 1  # has more than one name: a group follows the name, and only its first record has the content
AGAIN = 2  # one more name of the group

_WINDOW = 1 << 18


class Kind(IntEnum):
    END = 0
    DIRECTORY = 1
    FILE = 2
    SYMLINK = 3
    PIECES = 4  # more of the file before it


class Entry(NamedTuple):
    """One record. `size` is of a file; `pieces` are its runs of data: the hole before each, its length, its chunk.

    `raw` is the record itself, of one that was read.
    """

    kind: Kind
    flags: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    name: bytes = b""
    group: bytes = b""
    xattrs: bytes = b""
    target: bytes = b""
    size: int = 0
    pieces: Sequence[tuple[int, int, bytes]] = ()
    raw: bytes = b""


END_RECORD = HEAD.pack(HEAD.size - 4, Kind.END, 0, 0, 0, 0, 0, 0, 0, 0)


def pack_xattrs(xattrs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_XATTR.pack(len(name), len(value)) + name + value for name, value in xattrs)


def unpack_xattrs(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        if at + _XATTR.size > len(data):
            raise damaged("an attribute of the manifest is cut off")
        name, value = _XATTR.unpack_from(data, at)
        at += _XATTR.size
        if at + name + value > len(data):
            raise damaged("an attribute of the manifest is cut off")
        yield data[at : at + name], data[at + name : at + name + value]
        at += name + value


def pack_content(size: int, pieces: Sequence[bytes]) -> bytes:
    """The end of a file's record: its size and its pieces, each packed as PIECE."""
    return _SIZE.pack(size) + b"".join(pieces)


class ManifestWriter:
    """Takes records, in order, and has their chunks in the vault. `ids` are those, when `close` has returned."""

    def __init__(self, writer: ChunkWriter, seed: int, limits: Limits = LIMITS) -> None:
        self._writer = writer
        self._cutter = FastCDC(8192, min_size=2048, max_size=65536, seed=seed)
        self._limits = limits
        self._buffer = bytearray()
        self.ids: list[bytes] = []
        self.size_bytes = 0

    def add(self, record: bytes) -> None:
        self._buffer += record
        if len(self._buffer) >= _WINDOW:
            self._cut(last=False)

    def close(self) -> None:
        self._cut(last=True)

    def _cut(self, *, last: bool) -> None:
        data = bytes(self._buffer)
        self.size_bytes += len(data)
        if self.size_bytes > self._limits.manifest_bytes:
            raise over("manifest_bytes", self._limits.manifest_bytes)
        chunks = list(self._cutter.cut_buf(data))
        rest = b""
        if not last and chunks:
            rest = bytes(chunks.pop().data)  # the end of the window is no cut
        self.ids += [self._writer.add(chunk.data, lane=1) for chunk in chunks]
        self.size_bytes -= len(rest)
        self._buffer = bytearray(rest)


def file_records(status: os.stat_result, name: bytes, group: bytes, tail: tuple[int, bytes]) -> bytes:
    """The records of a file with its content: one, and one more for each further thousand of pieces.

    `tail` is the length of the packed attributes, and those with the content. A `group` makes it the first of several.
    """
    xattr_len, rest = tail
    most = xattr_len + _SIZE.size + PIECES_A_RECORD * PIECE.size
    first = rest if len(rest) <= most else rest[:most]
    seconds, rest_ns = divmod(status.st_mtime_ns, 1_000_000_000)
    head = HEAD.pack(
        HEAD.size - 4 + len(name) + len(group) + len(first),
        Kind.FILE,
        LINKED if group else 0,
        status.st_mode & MODE_BITS,
        status.st_uid,
        status.st_gid,
        seconds,
        rest_ns,
        len(name),
        xattr_len,
    )
    records = head + name + group + first
    for at in range(most, len(rest), PIECES_A_RECORD * PIECE.size):
        more = rest[at : at + PIECES_A_RECORD * PIECE.size]
        records += HEAD.pack(HEAD.size - 4 + len(more), Kind.PIECES, 0, 0, 0, 0, 0, 0, 0, 0) + more
    return records


def named(records: bytes, name: bytes, group: bytes) -> bool:
    """Whether records are of a file of this name and group."""
    _, _, flags, _, _, _, _, _, name_len, _ = HEAD.unpack_from(records)
    end = HEAD.size + name_len
    own = records[end : end + GROUP_BYTES] if flags & LINKED else b""
    return records[HEAD.size : end] == name and own == group


def pieces_of(records: bytes) -> Sequence[range]:
    """Where the pieces lie in the records of a file."""
    length, _, flags, _, _, _, _, _, name_len, xattr_len = HEAD.unpack_from(records)
    begin = HEAD.size + name_len + (GROUP_BYTES if flags & LINKED else 0) + xattr_len + _SIZE.size
    end = length + 4
    found = [range(begin, end, PIECE.size)]
    while end < len(records):
        begin, end = end + HEAD.size, end + 4 + int.from_bytes(records[end : end + 4], "little")
        found.append(range(begin, end, PIECE.size))
    return found


def record(entry: Entry) -> bytes:
    """The record of anything but a file with content."""
    body = entry.name + entry.group + entry.xattrs + entry.target
    return (
        HEAD.pack(
            HEAD.size - 4 + len(body),
            entry.kind,
            entry.flags,
            entry.mode,
            entry.uid,
            entry.gid,
            *divmod(entry.mtime_ns, 1_000_000_000),
            len(entry.name),
            len(entry.xattrs),
        )
        + body
    )


class ManifestReader:
    """Takes the bytes of a manifest as they come and gives its entries. Raises Refused where it is damaged."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self._buffer = b""
        self._most = HEAD.size + 0xFFFF + GROUP_BYTES + limits.xattr_bytes * 2 + PIECES_A_RECORD * PIECE.size + 65536

    def feed(self, data: Data) -> Iterator[Entry]:
        buffer = self._buffer + bytes(data)
        at = 0
        while len(buffer) - at >= HEAD.size:
            length = int.from_bytes(buffer[at : at + 4], "little") + 4
            if not HEAD.size <= length <= self._most:
                raise damaged("the manifest has a record of a wrong length")
            if len(buffer) - at < length:
                break
            yield _parse(buffer[at : at + length])
            at += length
        self._buffer = buffer[at:]

    def close(self) -> None:
        if self._buffer:
            raise damaged("the manifest ends within a record")


def _parse(data: bytes) -> Entry:
    _, number, flags, mode, uid, gid, seconds, rest_ns, name_len, xattr_len = HEAD.unpack_from(data)
    at = HEAD.size
    name = data[at : at + name_len]
    at += name_len
    group = b""
    if flags & LINKED:
        group = data[at : at + GROUP_BYTES]
        at += GROUP_BYTES
    xattrs = data[at : at + xattr_len]
    at += xattr_len
    if at > len(data) or number not in _KINDS:
        raise damaged("a record of the manifest contradicts itself")
    kind = _KINDS[number]
    target, size, pieces = b"", 0, list[tuple[int, int, bytes]]()
    if kind is Kind.SYMLINK:
        target = data[at:]
    elif kind is Kind.PIECES:
        pieces = _pieces(data, at)
    elif kind is Kind.FILE and not flags & AGAIN:
        if at + _SIZE.size > len(data):
            raise damaged("a record of the manifest is cut off")
        (size,) = _SIZE.unpack_from(data, at)
        pieces = _pieces(data, at + _SIZE.size)
    mtime_ns = seconds * 1_000_000_000 + rest_ns
    return Entry(kind, flags, mode & MODE_BITS, uid, gid, mtime_ns, name, group, xattrs, target, size, pieces, data)


_KINDS = {int(kind): kind for kind in Kind}


def _pieces(data: bytes, at: int) -> list[tuple[int, int, bytes]]:
    if (len(data) - at) % PIECE.size:
        raise damaged("a record of the manifest is cut off")
    return list(PIECE.iter_unpack(data[at:]))
