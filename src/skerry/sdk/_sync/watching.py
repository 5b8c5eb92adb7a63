"""Changes to files, as they happen. Behind `sandbox.files.watch`."""

from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from skerry.sdk._sync.http import Http
from skerry.sdk.changes import FileChange, change_from
from skerry.sdk.errors import Unreachable
from skerry.sdk.sse import Decoder, ServerEvent


@contextmanager
def watch(http: Http, base: str, path: str, *, recursive: bool) -> Generator[Iterator[FileChange]]:
    """The changes from the moment that this is entered."""
    params = {"path": path, "recursive": recursive}
    with (
        http.stream(f"{base}/watch", params=params) as chunks,
        closing(_events(chunks)) as events,
        closing(_changes(events)) as changes,
    ):
        next(events)  # `watching`: what happens from here on is told
        yield changes


def _changes(events: Iterator[ServerEvent]) -> Generator[FileChange]:
    for event in events:
        yield change_from(event)


def _events(chunks: Iterator[bytes]) -> Generator[ServerEvent]:
    decoder = Decoder()
    for chunk in chunks:
        for event in decoder.feed(chunk):
            yield event
    raise Unreachable("The server ended the watch. Changes since the last event are not known.")
