"""The node's socket: a framed connection that carries one call at a time. Both ends are made of this.

A call is OPEN (JSON with `op`) from the client; then DATA, EOF and CONTROL from the client and DATA, EOF and EVENT from
the server, as the op has it; then CLOSE from the server, with the result or an error. Frames are those of
`sbxd/PROTOCOL.md`, always on stream 1. There is no credit: the socket's buffers are the flow control, since nothing
else shares the connection. A client that gives a call up closes the connection.

Both ends are processes of one host and one version. It knows framing and back pressure, and no op.
"""

import asyncio
import select
import struct
from collections import deque
from typing import cast

from skerry.guest.frames import HEADER_BYTES, FrameType, check_header, encode_header, encode_json
from skerry.guest.shapes import Json
from skerry.guest.sockets import widen
from skerry.model.errors import ProtocolError, SkerryError, Unavailable

SCRATCH_BYTES = 524_288
PIECE = 262_144  # DATA frames are cut to this: large enough for speed, small enough that a slow peer holds little
_STREAM = 1
_HIGH, _LOW = 1_048_576, 262_144  # received and not yet taken: when to stop reading, when to go on
_WRITE_HIGH = 262_144
_HANGUP_PROBE_S = 5.0
_BURST = 32  # frames sent in a row before other connections get their turn
_HEADER = struct.Struct("<IBBHI")
_DATA = int(FrameType.DATA)

Received = tuple[int, int, bytes]  # frame type, channel, payload; a DATA frame may come in several pieces


def scratch() -> memoryview:
    """Where connections of one loop receive into. Shared: what is received is copied out before the loop goes on."""
    return memoryview(bytearray(SCRATCH_BYTES))


class CallConnection(asyncio.BufferedProtocol):
    """One end. One task receives, one task sends; `lost` is set when the peer has gone."""

    def __init__(self, buffer: memoryview) -> None:
        self._scratch = buffer
        self._transport: asyncio.Transport | None = None
        self._queue: deque[Received] = deque()
        self._queued = 0
        self._partial = bytearray()  # a header, or a frame other than DATA, that is not complete
        self._data_left = 0  # of the DATA frame that is being received
        self._channel = 0
        self._reading = True
        self._may_write = True
        self._burst = 0
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self.lost = False

    # -- asyncio's side ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)
        widen(transport.get_extra_info("socket"))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._parse(self._scratch[:nbytes])
        except ProtocolError:
            self.abort()
        if self._queued > _HIGH and self._reading and self._transport is not None:
            self._reading = False
            self._transport.pause_reading()
            self._probe_later()
        _wake(self._reader)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._transport = None
        _wake(self._reader)
        _wake(self._writer)

    def pause_writing(self) -> None:
        self._may_write = False

    def resume_writing(self) -> None:
        self._may_write = True
        _wake(self._writer)

    def _probe_later(self) -> None:
        asyncio.get_running_loop().call_later(_HANGUP_PROBE_S, self._probe)

    def _probe(self) -> None:
        # A loop reports no hang-up of a socket that it does not read from.
        if self._reading or self._transport is None:
            return
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        if poll.poll(0):
            self.abort()
        else:
            self._probe_later()

    # -- receiving ---------------------------------------------------------------------------------------------

    def _parse(self, view: memoryview) -> None:
        at, size = 0, len(view)
        while at < size:
            if self._data_left:
                taken = min(self._data_left, size - at)
                self._push(_DATA, self._channel, bytes(view[at : at + taken]))
                self._data_left -= taken
                at += taken
            elif self._partial:
                missing = self._wanted(self._partial) - len(self._partial)
                self._partial += view[at : at + missing]
                at += min(missing, size - at)
                if len(self._partial) == self._wanted(self._partial):
                    whole, self._partial = self._partial, bytearray()
                    self._frame(memoryview(whole))
            else:
                whole = view[at:]
                wanted = self._wanted(whole)
                if len(whole) < wanted:
                    self._partial += whole
                    return
                self._frame(whole[:wanted])
                at += wanted

    def _wanted(self, beginning: memoryview | bytearray) -> int:
        """How many bytes are to be had before anything can be done; of a DATA frame the header is enough."""
        if len(beginning) < HEADER_BYTES:
            return HEADER_BYTES
        length, type, channel, reserved, stream = _HEADER.unpack_from(beginning)
        check_header(length, type, channel, reserved, stream)
        return HEADER_BYTES if type == _DATA else HEADER_BYTES + length

    def _frame(self, whole: memoryview) -> None:
        length, type, channel, _, _ = _HEADER.unpack_from(whole)
        if type == _DATA:
            self._data_left, self._channel = length, channel
        else:
            self._push(type, channel, bytes(whole[HEADER_BYTES:]))

    def _push(self, type: int, channel: int, payload: bytes) -> None:
        self._queue.append((type, channel, payload))
        self._queued += len(payload) + HEADER_BYTES

    async def receive(self) -> Received | None:
        """The next frame, or piece of one; None when the peer has gone and all was taken."""
        while not self._queue:
            if self.lost:
                return None
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        received = self._queue.popleft()
        self._queued -= len(received[2]) + HEADER_BYTES
        if not self._reading and self._queued <= _LOW and self._transport is not None:
            self._reading = True
            self._transport.resume_reading()
        return received

    # -- sending -----------------------------------------------------------------------------------------------

    async def send(self, type: int, payload: bytes | memoryview = b"", channel: int = 0) -> None:
        """Queue a frame, and wait until the peer has read enough for more. A view's bytes must not change any more.

        Raises:
            Unavailable: The peer has gone.
        """
        while not self._may_write and not self.lost:
            self._writer = asyncio.get_running_loop().create_future()
            try:
                await self._writer
            finally:
                self._writer = None
        self._burst = (self._burst + 1) % _BURST
        if not self._burst:
            await asyncio.sleep(0)
        # Closing is set at once by a failed write, and `connection_lost` comes later: who never waits would not see it.
        if self._transport is None or self._transport.is_closing():
            raise Unavailable("The connection has been closed by its other end.")
        header = encode_header(type, _STREAM, len(payload), channel)
        if payload:
            # One write of two buffers: uvloop, and asyncio from Python 3.12 on, send the payload from where it lies.
            self._transport.writelines((header, payload))
        else:
            # That asyncio keeps an empty buffer for ever: it spins on it, and never closes.
            self._transport.write(header)

    async def send_json(self, type: int, told: Json) -> None:
        await self.send(type, encode_json(told))

    async def send_data(self, data: bytes, channel: int = 0) -> None:
        """Send `data` in as many DATA frames as it takes."""
        if len(data) <= PIECE:
            if data:
                await self.send(_DATA, data, channel)
            return
        whole = memoryview(data)
        for at in range(0, len(data), PIECE):
            await self.send(_DATA, whole[at : at + PIECE], channel)

    def close(self) -> None:
        """End the connection once what was sent is written. Safe to call twice."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def quiet(self) -> bool:
        """Nothing received is waiting: the connection may carry another call."""
        return not self.lost and not self._queue and not self._partial and not self._data_left


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def unreachable(path: object, error: Exception) -> SkerryError:
    return Unavailable(f"The node does not answer on {path} ({error}). Is it running? `skerry doctor` tells more.")
