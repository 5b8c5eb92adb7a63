"""The files of one command's spool: their names, their formats, and which there are. Keeps nothing, follows nobody.

A spool is one segment or several, one behind the other; the first has no number in its names:

    output   output.<start>    raw bytes, both channels in the order they came
    index    index.<start>     a header, then one record a run of bytes of one channel: its end, its channel

`start` is the offset of a segment's first byte; ends in records count from there. A segment exists once its index has a
whole header. Where a segment begins behind the end of the one before it, the bytes between are lost.
"""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from skerry.model.command import Keep
from skerry.model.ids import SandboxId

HEADER = struct.Struct("<8s48sQ")  # magic, sandbox id, start of the command in ms since 1970
RECORD = struct.Struct("<Q")  # end << 8 | channel
LOST = 0  # the channel of bytes that never came
INLINE = 16_384  # reads and writes up to this size are made on the loop: a thread would cost more than the page cache

_MAGIC = {Keep.HEAD: b"skspool1", Keep.TAIL: b"skspool2", Keep.UNREAD: b"skspool3"}
_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW


@dataclass(frozen=True, slots=True)
class Header:
    """What every segment says of its command."""

    sandbox_id: SandboxId
    started_at_s: float
    keep: Keep

    def packed(self) -> bytes:
        return HEADER.pack(_MAGIC[self.keep], self.sandbox_id.encode(), round(self.started_at_s * 1000))


def output_path(path: Path, start: int) -> str:
    return f"{path}/output.{start}" if start else f"{path}/output"


def index_path(path: Path, start: int) -> str:
    return f"{path}/index.{start}" if start else f"{path}/index"


def starts_in(path: Path) -> list[int]:
    """Where the segments begin that there are, in order; one without a whole header among them."""
    try:
        names = os.listdir(path)  # noqa: PTH208 - a third of the cost, and slow followers ask often
    except FileNotFoundError:
        return []
    found = [0] if "index" in names else []
    found += [
        int(name[6:]) for name in names if name.startswith("index.") and name[6:].isascii() and name[6:].isdigit()
    ]
    return sorted(found)


def read_header(path: Path, start: int) -> Header | None:
    """The header of a segment; None when there is none, or only a part of one."""
    try:
        with open(index_path(path, start), "rb") as index:  # noqa: PTH123
            magic, owner, started_ms = HEADER.unpack(index.read(HEADER.size))
        keep = next(keep for keep, known in _MAGIC.items() if known == magic)
        return Header(SandboxId(owner.rstrip(b"\0").decode("ascii")), started_ms / 1000, keep)
    except (OSError, struct.error, StopIteration, ValueError):
        return None


def open_segment(path: Path, start: int, *, write: bool) -> tuple[int, int]:
    """Descriptors of a segment's output and index. The output first: a segment is there when its index is."""
    flags = _OPEN | (os.O_RDWR | os.O_CREAT if write else os.O_RDONLY)
    fd = os.open(output_path(path, start), flags, 0o600)
    try:
        return fd, os.open(index_path(path, start), flags, 0o600)
    except BaseException:
        os.close(fd)
        raise


def remove_segment(path: Path, start: int) -> None:
    """Remove a segment, its index first. Its space is free at once, whoever has it open."""
    for name in (index_path(path, start), output_path(path, start)):
        try:
            if name == output_path(path, start):
                os.truncate(name, 0)
            os.unlink(name)  # noqa: PTH108
        except FileNotFoundError:
            continue


def remove_strays(path: Path, starts: list[int]) -> None:
    """Remove outputs whose segment does not exist: their removal, or their making, was interrupted."""
    known = {os.path.basename(output_path(path, start)) for start in starts}  # noqa: PTH119
    for name in os.listdir(path):  # noqa: PTH208
        if name.startswith("output") and name not in known:
            os.unlink(f"{path}/{name}")  # noqa: PTH108
