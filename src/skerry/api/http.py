"""uvicorn's HTTP protocol with a cheaper way for request bodies. Decides nothing: parsing and limits are uvicorn's.

uvicorn copies each received piece into a growing buffer and out of it again, which for a large upload is a third of the
API's work. Here a piece that nothing waits in front of is handed on as it is.
"""

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class HttpProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=…)`. Bound to the pinned uvicorn: it fills what its cycle's `receive` takes."""

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        assert self.parser is not None  # it is calling
        if cycle.response_complete or self.parser.should_upgrade():
            super().on_body(body)
            return
        if not cycle.body:
            cycle.body = body  # pyright: ignore[reportAttributeAccessIssue] - `receive` takes bytes(body): no copy
        else:
            if isinstance(cycle.body, bytes):
                cycle.body = bytearray(cycle.body)
            cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()
