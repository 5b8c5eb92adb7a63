"""Answers whose body comes bit by bit: bytes, and server-sent events with pings. The source is closed in every case."""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from skerry.control.streams import closing

# How routes that answer with streams are described.
SSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}
}
BYTES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/octet-stream": {}}, "description": "Bytes"}}

RAW_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}

PING_EVERY_S = 15.0
_SMALL = 32_768
_PING = b": ping\n\n"


class Stream(StreamingResponse):
    """Sends `chunks` as they come; a client that leaves ends them. `close` is awaited at the end, whatever happens."""

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = "application/octet-stream",
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(chunks, status, headers, media_type)
        self._chunks = chunks
        self._closes = [] if close is None else [close]

    def close_too(self, close: Callable[[], Awaitable[object]]) -> None:
        """Await this, too, after what was to be closed before."""
        self._closes.append(close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with closing(self._chunks):
                await super().__call__(scope, receive, send)
        finally:
            for close in self._closes:
                await close()


async def gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """A body's bytes as they come, small pieces together: each would cost a call and a wake-up inside."""
    held = bytearray()
    async with closing(chunks):
        async for chunk in chunks:
            if not held and len(chunk) >= _SMALL:
                yield chunk  # not copied once more
                continue
            held += chunk
            if len(held) >= _SMALL:
                yield bytes(held)
                held.clear()
    if held:
        yield bytes(held)


def events(chunks: AsyncIterator[bytes], close: Callable[[], Awaitable[object]] | None = None) -> Stream:
    """A stream of server-sent events. Proxies are asked not to hold them back."""
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return Stream(_pinged(chunks), headers=headers, media_type="text/event-stream", close=close)


def event(name: str, data: str, event_id: int | None = None) -> bytes:
    """One event. `data` has no line feeds."""
    head = f"id: {event_id}\n" if event_id is not None else ""
    return f"{head}event: {name}\ndata: {data}\n\n".encode()


def event_base64(name: str, data: bytes, event_id: int | None = None) -> bytes:
    return event(name, base64.b64encode(data).decode(), event_id)


async def _pinged(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with closing(chunks):
        coming = asyncio.ensure_future(_next(chunks))
        try:
            while True:
                done, _ = await asyncio.wait({coming}, timeout=PING_EVERY_S)
                if not done:
                    yield _PING
                    continue
                chunk = coming.result()
                if chunk is None:
                    return
                yield chunk
                coming = asyncio.ensure_future(_next(chunks))
        finally:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next(chunks: AsyncIterator[bytes]) -> bytes | None:
    return await anext(chunks, None)
