"""Files inside one sandbox, over one connection. Paths are resolved inside, by sbxd: nothing here opens a file."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from skerry.guest import answers, frames, requests
from skerry.guest.connection import Connection
from skerry.guest.frames import Channel
from skerry.guest.stream import Stream
from skerry.guest.uploads import send_until_answered
from skerry.model.errors import Invalid
from skerry.model.files import ChangeKind, FileChange, FileInfo

ANSWER_S = 60.0
TREE_S = 900.0  # removing a tree, or moving a file to another device, takes as long as it is large
STALL_S = 120.0  # a disk that moves no byte for this long
READ_AHEAD = 262_144  # beyond the initial credit: sbxd reads the next frame while one is under way
WATCH_BYTES = 1 << 20  # unread changes beyond this are told as `overflow`
_MAX_LINE = 131_072


class StreamedFile:
    """`seams.FileReader` over a stream. Bytes are acknowledged when the next are asked for. To be iterated once."""

    def __init__(self, connection: Connection, stream: Stream, info: FileInfo, length: int) -> None:
        self.info = info
        self._connection = connection
        self._stream = stream
        self._length = length

    async def __aiter__(self) -> AsyncIterator[bytes]:
        total = 0
        while (item := await self._stream.chunk(STALL_S)) is not None:
            channel, data = item
            total += len(data)
            if channel != Channel.MAIN or 0 <= self._length < total:
                raise self._stream.reject("more of a file than was asked for")
            if data:
                yield data
                self._stream.consumed(len(data))
        result = await self._stream.result(ANSWER_S)
        self._connection.checked(answers.number, result, "bytes", total, total)


@asynccontextmanager
async def read(connection: Connection, path: str, offset: int, length: int) -> AsyncGenerator[StreamedFile]:
    """Open a regular file and give its reader; leaving the context stops the reading."""
    if offset < 0 or length < -1:
        raise Invalid("A file is read from offset 0 or more, and its length is 0 or more (-1: all).", field="offset")
    request = {"op": "read", "path": requests.path(path), "offset": offset, "length": length}
    stream = await connection.open(request, ahead_bytes=READ_AHEAD)
    try:
        event = await stream.event(ANSWER_S)
        if event is None:
            await stream.result()
        yield StreamedFile(connection, stream, connection.checked(answers.read_stat, event), length)
    finally:
        stream.close()


async def write(
    connection: Connection, path: str, chunks: AsyncIterator[bytes], *, mode: int | None, create_only: bool
) -> FileInfo:
    """Replace a file, all or nothing. What `chunks` raises goes through, and nothing is left behind then."""
    request: dict[str, object] = {"op": "write", "path": requests.path(path)}
    if mode is not None:
        request["mode"] = _mode(mode)
    if create_only:
        request["create_only"] = True
    stream = await connection.open(request)
    try:
        await send_until_answered(send_chunks(stream, chunks), stream.result())
        return connection.checked(answers.read_file_info, await stream.result(STALL_S))
    finally:
        stream.close()  # before the end of file: sbxd drops what it has


async def send_chunks(stream: Stream, chunks: AsyncIterator[bytes]) -> None:
    """All of `chunks`, then end of file."""
    async for chunk in chunks:
        if chunk:
            await stream.send(chunk, deadline_s=STALL_S)
    await stream.send_eof()


def _mode(mode: int) -> int:
    if not 0 <= mode <= 0o7777:
        raise Invalid("A file's mode is between 0 and 07777.", field="mode")
    return mode


async def list_directory(connection: Connection, path: str) -> AsyncGenerator[FileInfo]:
    """The entries of a directory, unsorted, as sbxd reads them."""
    stream = await connection.open({"op": "list", "path": requests.path(path)})
    count = 0
    try:
        async with aclosing(lines(stream)) as entries:
            async for line in entries:
                entry = connection.checked(frames.decode_json, line)
                count += 1
                yield connection.checked(answers.read_file_info, entry)
        connection.checked(answers.number, await stream.result(ANSWER_S), "count", count, count)
    finally:
        stream.close()


async def lines(stream: Stream) -> AsyncGenerator[bytes]:
    """DATA as lines of text; an error in the middle explains a cut one."""
    rest = b""
    while (item := await stream.chunk(STALL_S)) is not None:
        channel, data = item
        if channel != Channel.MAIN:
            raise stream.reject("a listing on the wrong channel")
        *whole, rest = (rest + data).split(b"\n")
        if len(rest) > _MAX_LINE:
            raise stream.reject("an entry of absurd length")
        for line in whole:
            yield line
        stream.consumed(len(data))
    if rest and stream.finished:
        await stream.result()  # an error in the middle of a listing explains the cut line
        raise stream.reject("a listing that ends within an entry")


async def one_answer(
    connection: Connection, request: dict[str, object], deadline_s: float = ANSWER_S
) -> dict[str, Any]:
    """Ask something that is answered with the CLOSE alone.

    Raises:
        GuestError: It failed inside.
    """
    stream = await connection.open(request)
    try:
        return await stream.result(deadline_s)
    finally:
        stream.close()


async def set_attributes(
    connection: Connection, path: str, *, mode: int | None, mtime_ns: int | None, now: bool, create: bool
) -> FileInfo:
    request: dict[str, object] = {"op": "setattr", "path": requests.path(path), "now": now, "create": create}
    if now and mtime_ns is not None:
        raise Invalid("A time is either given or the present one, not both.", field="mtime_ns")
    if mode is not None:
        request["mode"] = _mode(mode)
    if mtime_ns is not None:
        request["mtime_ns"] = requests.time_ns(mtime_ns)
    return connection.checked(answers.read_file_info, await one_answer(connection, request))


async def stat(connection: Connection, path: str, *, follow: bool) -> FileInfo:
    request: dict[str, object] = {"op": "stat", "path": requests.path(path), "follow": follow}
    return connection.checked(answers.read_file_info, await one_answer(connection, request))


async def mkdir(connection: Connection, path: str, *, parents: bool, mode: int) -> FileInfo:
    request: dict[str, object] = {"op": "mkdir", "path": requests.path(path), "parents": parents, "mode": _mode(mode)}
    return connection.checked(answers.read_file_info, await one_answer(connection, request))


async def move(connection: Connection, source: str, target: str, *, overwrite: bool) -> FileInfo:
    request: dict[str, object] = {
        "op": "move",
        "from": requests.path(source, "source"),
        "to": requests.path(target, "target"),
        "overwrite": overwrite,
    }
    return connection.checked(answers.read_file_info, await one_answer(connection, request, TREE_S))


async def remove(connection: Connection, path: str, *, recursive: bool) -> int:
    """Remove; never through a symlink. The number of entries removed."""
    request: dict[str, object] = {"op": "remove", "path": requests.path(path), "recursive": recursive}
    return connection.checked(answers.number, await one_answer(connection, request, TREE_S), "removed")


@asynccontextmanager
async def watch(connection: Connection, path: str, *, recursive: bool) -> AsyncGenerator[AsyncIterator[FileChange]]:
    """Changes under `path`. Entered once the watch is set: what happens after that is seen, or told as `overflow`."""
    request = {"op": "watch", "path": requests.path(path), "recursive": recursive}
    stream = await connection.open(request, events_bytes=WATCH_BYTES)
    try:
        event = await stream.event(ANSWER_S)
        if event is None:
            await stream.result()
        connection.checked(answers.expect_event, event, "watching")
        async with aclosing(_changes(connection, stream, path)) as changes:
            yield changes
    finally:
        stream.close()


async def _changes(connection: Connection, stream: Stream, path: str) -> AsyncGenerator[FileChange]:
    while True:
        event = await stream.event()
        if event is not None:
            yield connection.checked(answers.read_change, event)
        elif stream.overflowed:
            stream.overflowed = False
            yield FileChange(ChangeKind.OVERFLOW, path)
        else:
            await stream.result()
            return
