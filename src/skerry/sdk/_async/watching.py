"""Changes to files, as they happen. Behind `sandbox.files.watch`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

from skerry.sdk._async.http import AsyncHttp
from skerry.sdk.changes import FileChange, change_from
from skerry.sdk.errors import Unreachable
from skerry.sdk.sse import Decoder, ServerEvent


@asynccontextmanager
async def watch(http: AsyncHttp, base: str, path: str, *, recursive: bool) -> AsyncGenerator[AsyncIterator[FileChange]]:
    """The changes from the moment that this is entered."""
    async with http.stream(f"{base}/watch", params={"path": path, "recursive": recursive}) as chunks:
        events = _events(chunks)
        await anext(events)  # `watching`: what happens from here on is told
        yield _changes(events)


async def _changes(events: AsyncIterator[ServerEvent]) -> AsyncIterator[FileChange]:
    async for event in events:
        yield change_from(event)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[ServerEvent]:
    decoder = Decoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            yield event
    raise Unreachable("The server ended the watch. Changes since the last event are not known.")
