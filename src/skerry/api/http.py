"""uvicorn's HTTP protocol with a cheaper way for request bodies, and an end for those that nobody wants any more.

uvicorn copies each received piece into a growing buffer and out of it again, which for a large upload is a third of the
API's work. Here a piece that nothing waits in front of is handed on as it is.

uvicorn keeps a connection whose request was answered early, and takes the rest of the body, however long. Here such
an answer says `Connection: close`; what still comes is dropped for a moment, so that the client, which may only look
for it when it has sent all or cannot send any more, finds it before the connection is cut.

uvicorn writes an answer's head and its body apart, and the client wakes up for each. Here a small answer leaves whole.

uvicorn takes a head of any length, and waits for one for ever, before anybody has said who they are. Here both have an
end, and so has what may stand in and behind a body that comes in chunks; headers behind it are dropped.

uvicorn does not notice a client that leaves while it does not read from it. Here the kernel is asked now and then.
Parsing is uvicorn's.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from skerry.api.hangups import HUNG_UP, has_hung_up, stay_in_touch

LINGER_S = 2.0
# A rest of a body up to this is cheaper to take than a new connection.
SMALL_REST = 65_536
HEAD_BYTES = 65_536  # of a request's line and headers; counted by what is received at once, so some more pass
HEAD_WITHIN_S = 20.0  # from the first byte, or from the connection's beginning, to the head's end
LOOK_EVERY_S = 5.0  # whether a client is still there from whom nothing is read
_SMALL_ANSWER = re.compile(rb"\r\ncontent-length: [0-9]{1,5}\r\n")


class OnePiece:
    """The transport as it is shown to one request's cycle: the head of a small answer waits for what follows it.

    Something does, where a head tells a length: the body, be it empty, or the connection's end. Not for HEAD.
    """

    __slots__ = ("_begun", "_head", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._begun = False
        self._head = b""

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif not self._begun:
            self._begun = True
            if _SMALL_ANSWER.search(data):
                self._head = data
                return
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


@dataclass(slots=True)
class _Upload:
    """A request's body: how much is still to come by its own telling. None: chunked, it does not tell."""

    cycle: RequestResponseCycle
    left: int | None

    @property
    def long(self) -> bool:
        return self.cycle.more_body and (self.left is None or self.left > SMALL_REST)


class HttpProtocol(HttpToolsProtocol):
    """For `uvicorn.Config(http=…)`. Bound to the pinned uvicorn: it fills what its cycle's `receive` takes."""

    head_within_s = HEAD_WITHIN_S
    look_every_s = LOOK_EVERY_S

    _upload: _Upload | None = None  # the request that is being received, if its body is not a small one
    _ending = False  # the last answer of this connection is out
    _stopping = False  # the server is
    _upgraded = False  # a WebSocket has it
    _in_head = True  # what comes next belongs to a head
    _heads = 0  # complete ones
    _head_bytes = 0  # of the one that has not ended; in a body, of what is none of it
    _body_seen = False  # in what is being received
    _patience: asyncio.TimerHandle | None = None  # while no request is being answered
    _looking: asyncio.TimerHandle | None = None  # while reading is paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        stay_in_touch(transport)
        self._hung_up = asyncio.Event()
        self._patience = self.loop.call_later(self.head_within_s, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        self._be_patient()
        if self._looking is not None:
            self._looking.cancel()
        self._hung_up.set()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._ending:
            return
        heads = self._heads
        self._body_seen = False
        super().data_received(data)
        if self._heads != heads or self._body_seen:
            self._head_bytes = 0
        else:  # all of it: what begins behind a body is counted from its next piece on
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, f"The request's line and headers are longer than {HEAD_BYTES} bytes.")
        if self.flow.read_paused and self._looking is None:
            self._looking = self.loop.call_later(self.look_every_s, self._look)
        # Also where an answered request's body goes on: uvicorn has no deadline any more once something comes.
        if self._patience is None and self._is_idle():
            self._patience = self.loop.call_later(self.head_within_s, self._too_slow)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else it stands behind a body, and nobody has looked at it before
            super().on_header(name, value)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._in_head = True

    def handle_websocket_upgrade(self) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade()

    def on_headers_complete(self) -> None:
        self._heads += 1
        self._in_head = False
        self._be_patient()
        before = self.cycle
        self.scope[HUNG_UP] = self._hung_up  # pyright: ignore[reportGeneralTypeIssues] - of our own
        super().on_headers_complete()
        self._upload = None
        if self.cycle is before:
            return  # it becomes a websocket
        if self.scope["method"] != "HEAD":
            self.cycle.transport = OnePiece(self.transport)  # pyright: ignore[reportAttributeAccessIssue]
        left = _announced(self.headers)
        if left is None or left > SMALL_REST:
            self._upload = upload = _Upload(self.cycle, left)
            self.cycle.send = self._watched(upload, self.cycle.send)  # pyright: ignore[reportAttributeAccessIssue]

    def on_body(self, body: bytes) -> None:
        self._body_seen = True
        cycle = self.cycle
        assert self.parser is not None  # it is calling
        if self._upload is not None and self._upload.left is not None:
            self._upload.left -= len(body)
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

    def on_response_complete(self) -> None:
        if not self._ending:
            super().on_response_complete()
            return
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        if self._stopping:
            self.transport.close()  # nobody is there to wait
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def shutdown(self) -> None:
        self._stopping = True
        super().shutdown()

    def _look(self) -> None:
        """A client whose end nobody reads up to holds what is done for it until it is found to have gone."""
        self._looking = None
        if not self.flow.read_paused or self.transport.is_closing():
            return
        if has_hung_up(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._looking = self.loop.call_later(self.look_every_s, self._look)

    def _is_idle(self) -> bool:
        """Nobody works on a request of this connection."""
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None until the first, whatever its type says
        return not self._upgraded and (cycle is None or cycle.response_complete)

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _too_slow(self) -> None:
        self._patience = None
        if self._is_idle():
            self._refuse(408, f"No request was complete within {self.head_within_s:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request yet, and end the connection."""
        self._ending = True
        if self.transport.is_closing():
            return
        if self._head_bytes and self._is_idle():  # else it would be taken for another request's answer
            code = "too_large" if status == 431 else "timeout"
            body = json.dumps({"error": {"code": code, "message": message}}).encode()
            kind = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[status] + kind + body)
        self.transport.close()

    def _watched(self, upload: _Upload, send: Callable[[Any], Awaitable[None]]) -> Callable[[Any], Awaitable[None]]:
        """`send` for an answer that may come before the body has been received."""
        cycle, cut = upload.cycle, False

        async def watched(message: Any) -> None:
            nonlocal cut
            if message["type"] == "http.response.start":
                cut = upload.long
                cycle.keep_alive = cycle.keep_alive and not cut  # makes uvicorn say `Connection: close`
            elif cut and not message.get("more_body", False):
                cycle.keep_alive = True  # makes it leave the closing to `on_response_complete`
                self._ending = True
            await send(message)

        return watched


def _announced(headers: list[tuple[bytes, bytes]]) -> int | None:
    """The length of a body by its header; 0: there is none; None: it is not told."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length" and value.isdigit():
            length = int(value)
    return length
