"""A file on its way out, whole or one range, in flat memory."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

from starlette.responses import Response

from skerry.api import errors, ranges
from skerry.api.streaming import Stream
from skerry.control import files
from skerry.model.errors import GuestError, Invalid
from skerry.model.files import FileInfo, FileType
from skerry.seams import FileReader, Guest

_SMALL = 65_536  # files up to this are read before the answer begins


async def download(guest: Guest, path: str, range_header: str | None, if_range: str | None, *, head: bool) -> Response:
    """The answer to GET and HEAD. What the file is, is told from the moment of opening it."""
    wanted = ranges.parse(range_header)
    if wanted is None and not head:
        return await _whole(guest, path)
    info = await files.stat(guest, path, follow=True)
    if info.type is not FileType.FILE:
        raise GuestError("not_a_file", f"'{path}' is no regular file.")
    if head:
        return _head(info)
    if wanted is None or (if_range is not None and if_range != _tag(info)):
        return await _whole(guest, path)  # it has changed since the client's first part: all of it again
    try:
        start, length = ranges.resolve(wanted, info.size_bytes)
    except Invalid as error:
        return errors.envelope(416, error.code, error.message, headers={"Content-Range": f"bytes */{info.size_bytes}"})
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(files.read(guest, path, start, length))
        headers = _headers(reader.info) | {
            "Content-Range": f"bytes {start}-{start + length - 1}/{info.size_bytes}",
            "Content-Length": str(length),
        }
        return Stream(_exactly(reader, length), 206, headers, close=stack.pop_all().aclose)


async def _whole(guest: Guest, path: str) -> Response:
    async with AsyncExitStack() as stack:
        reader = await stack.enter_async_context(files.read(guest, path))
        headers = _headers(reader.info)
        if reader.info.size_bytes > _SMALL:
            headers["Content-Length"] = str(reader.info.size_bytes)
            return Stream(_exactly(reader, reader.info.size_bytes), 200, headers, close=stack.pop_all().aclose)
        # What the kernel makes up as it is read (/proc, /sys) tells 0 or a page as its size: read, and see.
        chunks = aiter(reader)
        beginning, ended = await _beginning(chunks)
        if ended:
            return Response(beginning, 200, headers, "application/octet-stream")
        return Stream(_joined(beginning, chunks), 200, headers, close=stack.pop_all().aclose)


async def _beginning(chunks: AsyncIterator[bytes]) -> tuple[bytes, bool]:
    """All of a small file, True; or the first part of a larger one, False."""
    held = bytearray()
    async for chunk in chunks:
        held += chunk
        if len(held) > _SMALL:
            return bytes(held), False
    return bytes(held), True


async def _joined(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for chunk in rest:
        yield chunk


def _head(info: FileInfo) -> Response:
    return Response(
        status_code=200,
        headers={**_headers(info), "Content-Length": str(info.size_bytes), "Content-Type": "application/octet-stream"},
    )


def _headers(info: FileInfo) -> dict[str, str]:
    return {
        "Accept-Ranges": "bytes",
        "ETag": _tag(info),
        # Hostile content on the API's own origin: never shown, never guessed at.
        "Content-Disposition": "attachment",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-store",
    }


def _tag(info: FileInfo) -> str:
    return f'"{info.mtime_ns:x}-{info.size_bytes:x}"'


async def _exactly(reader: FileReader, length: int) -> AsyncIterator[bytes]:
    """`length` bytes. A file that grew meanwhile is cut; one that shrank breaks the answer, which tells the client."""
    async for chunk in reader:
        if len(chunk) >= length:
            yield chunk[:length]
            return
        length -= len(chunk)
        yield chunk
