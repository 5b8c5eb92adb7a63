"""Changes to files, as they happen. Behind `sandbox.files.watch`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from skerry.sdk._async.http import AsyncHttp
from skerry.sdk.changes import FileChange, change_from
from skerry.sdk.errors import Unreachable
from skerry.sdk.sse import Decoder, ServerEvent


@asynccontextmanager
async def watch(http: AsyncHttp, base: str, path: str, *, recursive: bool) -> AsyncGenerator[AsyncIterator[FileChange]]:
    """The changes from the moment that this is entered."""
    params = {"path": path, "recursive": recursive}
    async with (
        http.stream(f"{base}/watch", params=params) as chunks,
        aclosing(_events(chunks)) as events,
        aclosing(_changes(events)) as changes,
    ):
        await anext(events)  # `watching`: what happens from here on is told
        yield changes


async def _changes(events: AsyncIterator[ServerEvent]) -> AsyncGenerator[FileChange]:
    async for event in events:
        yield change_from(event)


async def _events(chunks: AsyncIterator[bytes]) -> AsyncGenerator[ServerEvent]:
    decoder = Decoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            yield event
    raise Unreachable("The server ended the watch. Changes since the last event are not known.")
