"""Trees as tar streams, over one connection. The stream is made and read inside, by sbxd: nothing here parses it."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from skerry.guest import answers, requests
from skerry.guest.connection import Connection
from skerry.guest.files import ANSWER_S, READ_AHEAD, STALL_S, send_chunks
from skerry.guest.frames import Channel
from skerry.guest.stream import Stream
from skerry.guest.uploads import send_until_answered
from skerry.model.errors import Unavailable
from skerry.model.files import Archived, ArchiveLimits

SETTLE_S = 600.0  # from the end of an upload to the answer: times of many directories are set then


class StreamedArchive:
    """`seams.ArchiveReader` over a stream. Bytes are acknowledged when the next are asked for. To be iterated once."""

    def __init__(self, connection: Connection, stream: Stream) -> None:
        self._connection = connection
        self._stream = stream
        self._result: Archived | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while (item := await self._stream.chunk(STALL_S)) is not None:
            channel, data = item
            if channel != Channel.MAIN:
                raise self._stream.reject("an archive on the wrong channel")
            if data:
                yield data
                self._stream.consumed(len(data))
        self._result = self._connection.checked(answers.read_archived, await self._stream.result(ANSWER_S))

    @property
    def result(self) -> Archived:
        if self._result is None:
            raise Unavailable("The archive has not been read to its end.")
        return self._result


def _request(op: str, path: str, limits: ArchiveLimits) -> dict[str, object]:
    return {
        "op": op,
        "path": requests.path(path),
        "max_entries": limits.max_entries,
        "max_bytes": limits.max_bytes,
    }


async def _begun(connection: Connection, stream: Stream, event: str) -> None:
    told = await stream.event(ANSWER_S)
    if told is None:
        await stream.result()
    connection.checked(answers.expect_event, told, event)


@asynccontextmanager
async def pack(connection: Connection, path: str, limits: ArchiveLimits) -> AsyncGenerator[StreamedArchive]:
    """Open a directory as a tar stream; leaving the context stops the packing."""
    stream = await connection.open(_request("pack", path, limits), ahead_bytes=READ_AHEAD)
    try:
        await _begun(connection, stream, "packing")
        yield StreamedArchive(connection, stream)
    finally:
        stream.close()


async def unpack(connection: Connection, path: str, chunks: AsyncIterator[bytes], limits: ArchiveLimits) -> Archived:
    """Unpack below a directory. What `chunks` raises goes through, and what was complete before stays."""
    stream = await connection.open(_request("unpack", path, limits))
    try:
        await _begun(connection, stream, "unpacking")
        await send_until_answered(send_chunks(stream, chunks), stream.result())
        return connection.checked(answers.read_archived, await stream.result(SETTLE_S))
    finally:
        stream.close()
