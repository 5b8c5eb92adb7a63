"""uvicorn's WebSocket protocol, with more patience for slow clients and none for dead ones. Decides nothing about them.

uvicorn takes a client for dead whose pong does not come in time. A pong waits behind all output that the client has not
read yet, and is not read here while its input waits for a command: neither is a sign of death.
"""

from asyncio.transports import BaseTransport

from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame

from skerry.api.hangups import stay_in_touch

PING_EVERY_S = 20.0
PONG_WITHIN_S = 20.0
MESSAGE_BYTES = 1_048_576  # from a client
_MOST_PARTS = 1024  # of one message: empty ones cost memory, too


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """For `uvicorn.Config(ws=…)`. Bound to the pinned uvicorn."""

    _moved_at_s = 0.0  # when bytes last came from the client, or room was made for more to it

    def connection_made(self, transport: BaseTransport) -> None:
        super().connection_made(transport)
        stay_in_touch(transport)  # our pings do not tell: no answer is read while input waits

    def data_received(self, data: bytes) -> None:
        self._moved_at_s = self.loop.time()
        super().data_received(data)

    def resume_writing(self) -> None:
        self._moved_at_s = self.loop.time()
        super().resume_writing()

    def keepalive_timeout(self) -> None:
        stalled = self.read_paused or not self.writable.is_set()
        assert self.ping_timeout is not None
        if not stalled and self.loop.time() - self._moved_at_s > self.ping_timeout:
            super().keepalive_timeout()
            return
        self.pong_timer = self.pending_ping_payload = None
        self.schedule_ping()

    def handle_cont(self, event: Frame) -> None:
        super().handle_cont(event)
        if len(self.frames) > _MOST_PARTS:
            self.conn.send_close(1009, "too many parts")
            self.handle_parser_exception()
