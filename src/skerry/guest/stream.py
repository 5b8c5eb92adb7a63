"""One stream of a connection: credit both ways, a bounded inbox, the events and the result of its operation.

It knows flow control and order, never what an operation means. One task may receive at a time; senders take turns.
"""

import asyncio
import re
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol, cast

from skerry.guest import frames
from skerry.guest.frames import INITIAL_CREDIT, FrameType
from skerry.guest.inbox import Inbox
from skerry.model.errors import DeadlineExceeded, GuestError, ProtocolError, SkerryError, Unavailable

CREDIT_STEP = 65_536  # smaller acknowledgements wait until the reader has nothing more to take
SEND_BYTES = frames.MAX_PAYLOAD
_MAX_EVENTS = 8
_MAX_CREDIT = 1 << 31
_CODE = re.compile(r"[a-z][a-z_]{0,31}")


class Wire(Protocol):
    """What a stream needs of its connection."""

    def transmit(self, *buffers: bytes | memoryview) -> None:
        """Queue and write. Nothing happens once the connection has ended."""
        ...

    async def room(self) -> None:
        """Wait until the peer has read enough for more to be queued."""
        ...

    def drop(self, stream_id: int) -> None:
        """The stream is over: frames for it are ignored from now on."""
        ...

    def broken(self, message: str) -> ProtocolError:
        """End the connection because the peer broke the rules; the error to raise."""
        ...


class Stream:
    """Made by `Connection.open` or handed to the connection's server handler. Not for direct construction.

    `events_bytes` is how much of unread events is kept (watches only); without it a handful is all a peer may send.
    """

    def __init__(self, wire: Wire, stream_id: int, *, events_bytes: int | None = None) -> None:
        self.id = stream_id
        self.overflowed = False  # events were dropped since the reader last reset this
        self._wire = wire
        self._inbox = Inbox()
        self._events: deque[bytes] = deque()
        self._events_room = events_bytes
        self._ended_channels = 0  # a bit for each channel that the peer has ended
        self._window = INITIAL_CREDIT  # what the peer may still send
        self._unacked = 0  # consumed here, not yet given back to the peer as credit
        self._credit = INITIAL_CREDIT  # what we may still send
        self._result: bytes | None = None
        self._error: SkerryError | None = None
        self._closed = False  # by us
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None
        self._sending = asyncio.Lock()
        self._controls = 0  # CONTROLs sent, each of which the peer may answer with one `refused`

    @property
    def over(self) -> bool:
        """Closed by either side, or its connection has ended. What was received before can still be read."""
        return self._closed or self._result is not None or self._error is not None

    @property
    def finished(self) -> bool:
        """Closed by the peer: `result` does not wait."""
        return self._result is not None

    # -- what the connection delivers --------------------------------------------------------------------------

    def on_frame(self, type: int, payload: bytes, channel: int) -> None:
        """Take one frame of this stream.

        Raises:
            ProtocolError: It breaks the rules; the connection has to end.
        """
        if type == FrameType.DATA:
            self._window -= len(payload)
            if self._window < 0 or self._ended_channels >> channel & 1:
                raise ProtocolError("The peer sent more data than it had credit for, or data after its end.")
            self._inbox.push(channel, payload)
        elif type == FrameType.CREDIT:
            self._credit += frames.decode_credit(payload)
            if self._credit > _MAX_CREDIT:
                raise ProtocolError("The peer granted an absurd amount of credit.")
            _wake(self._writer)
            return
        elif type == FrameType.EVENT:
            self._take_event(payload)
        elif type == FrameType.EOF:
            if self._ended_channels >> channel & 1:
                raise ProtocolError("The peer ended one channel twice.")
            self._ended_channels |= 1 << channel
            self._inbox.push(channel, b"")
        elif type == FrameType.CLOSE:
            self._result = payload
            self._wire.drop(self.id)
            _wake(self._writer)
        else:
            raise ProtocolError(f"The peer sent a {FrameType(type).name} frame, which it may not.")
        _wake(self._reader)

    def _take_event(self, payload: bytes) -> None:
        if self._controls and frames.decode_json(payload).get("event") == "refused":
            # It came too late (the command has ended) or had no subject (no terminal to resize): nothing happened.
            self._controls -= 1
            return
        if self._events_room is None:
            if len(self._events) >= _MAX_EVENTS:
                raise ProtocolError("The peer sent more events than its operation has.")
        elif self._events_room < len(payload):
            self.overflowed = True
            return
        else:
            self._events_room -= len(payload) + 64  # the object around it counts, too
        self._events.append(payload)

    def fail(self, error: SkerryError) -> None:
        """The connection has ended: readers get what was received, then `error`; writers get it at once."""
        if self._error is None:
            self._error = error
        _wake(self._reader)
        _wake(self._writer)

    # -- receiving ---------------------------------------------------------------------------------------------

    async def chunk(self, deadline_s: float | None = None) -> tuple[int, bytes] | None:
        """The next data as (channel, bytes); empty bytes end that channel. None: an event or the result is next.

        Bytes that were taken stay unacknowledged until `consumed` is called.

        Raises:
            DeadlineExceeded: Nothing came for `deadline_s` seconds.
        """
        while not self._inbox:
            if self._events or self._result is not None:
                return None
            self._acknowledge()
            await self._receive_more(deadline_s)
        return self._inbox.pop()

    def consumed(self, count: int) -> None:
        """`count` bytes have reached where they belong; the peer may send as many more."""
        self._unacked += count
        if self._unacked >= CREDIT_STEP:
            self._acknowledge()

    def _acknowledge(self) -> None:
        if self._unacked and not self.over:
            amount, self._unacked = self._unacked, 0
            self.widen(amount)

    def widen(self, amount: int) -> None:
        """Let the peer send `amount` more bytes."""
        self._window += amount
        self._wire.transmit(frames.encode_credit(self.id, amount))

    async def event(self, deadline_s: float | None = None) -> dict[str, Any] | None:
        """The next event, or None when the peer has closed the stream (see `result`). Data is left where it is."""
        while not self._events:
            if self._result is not None or self.overflowed:
                return None
            self._acknowledge()
            await self._receive_more(deadline_s)
        payload = self._events.popleft()
        if self._events_room is not None:
            self._events_room += len(payload) + 64
        return self._parsed(payload)

    async def result(self, deadline_s: float | None = None) -> dict[str, Any]:
        """What the peer closed the stream with.

        Raises:
            GuestError: It was an error.
        """
        while self._result is None:
            self._acknowledge()
            await self._receive_more(deadline_s)
        value = self._parsed(self._result)
        error = value.get("error")
        if error is not None:
            raise self._guest_error(error)
        return value

    def _parsed(self, payload: bytes) -> dict[str, Any]:
        try:
            return frames.decode_json(payload)
        except ProtocolError as error:
            raise self._wire.broken(error.message) from error

    def _guest_error(self, error: object) -> SkerryError:
        members = cast(dict[str, object], error) if type(error) is dict else {}
        code, message, number = members.get("code"), members.get("message"), members.get("errno")
        if type(code) is not str or not _CODE.fullmatch(code) or not isinstance(message, str | None):
            return self._wire.broken("The peer closed a stream with an error that has no code.")
        text = "".join(c if c.isprintable() else "?" for c in (message or code)[:1024])
        return GuestError(code, text, errno=number if type(number) is int and 0 < number < 4096 else None)

    def reject(self, what: str) -> ProtocolError:
        """The peer broke its operation's rules: ends the connection, and gives the error to raise."""
        return self._wire.broken(f"The sandbox answered with {what}.")

    async def _receive_more(self, deadline_s: float | None) -> None:
        if self._error is not None:
            raise again(self._error)
        if self._closed:
            raise Unavailable("The stream has been closed on this side.")
        waiter = self._reader = asyncio.get_running_loop().create_future()
        try:
            await _within(waiter, deadline_s)
        finally:
            if self._reader is waiter:  # a cancelled wait may end after the next one has begun
                self._reader = None

    # -- sending -----------------------------------------------------------------------------------------------

    async def send(self, data: bytes, channel: int = 0, *, deadline_s: float | None = None) -> None:
        """Send all of `data`; returns when it is on its way, not when it was consumed.

        Raises:
            GuestError: The peer closed the stream with this error.
            Unavailable: The peer or this side closed the stream.
            DeadlineExceeded: The peer took nothing for `deadline_s` seconds.
        """
        rest = memoryview(data if type(data) is bytes else bytes(data))  # queued below: it must not change any more
        async with self._sending:  # two writers of one stdin take turns
            await self._send_all(rest, channel, deadline_s)

    async def _send_all(self, rest: memoryview, channel: int, deadline_s: float | None) -> None:
        while rest:
            while self._credit <= 0 and not self.over:
                await self._wait_for_credit(deadline_s)
            await self._wire.room()  # last: a burst of credit for many streams must not fill the queue at once
            await self._check_open()
            buffers: list[bytes | memoryview] = []
            while rest and self._credit > 0:
                part = rest[: min(SEND_BYTES, self._credit)]
                self._credit -= len(part)
                buffers += (frames.encode_header(FrameType.DATA, self.id, len(part), channel), part)
                rest = rest[len(part) :]
            self._wire.transmit(*buffers)

    async def _wait_for_credit(self, deadline_s: float | None) -> None:
        waiter = self._writer = asyncio.get_running_loop().create_future()
        try:
            await _within(waiter, deadline_s)
        finally:
            if self._writer is waiter:
                self._writer = None

    async def _check_open(self) -> None:
        if self._error is not None:
            raise again(self._error)
        if self._result is not None:
            await self.result()  # raises the peer's reason, if it gave one
            raise Unavailable("The other side has closed the stream.")
        if self._closed:
            raise Unavailable("The stream has been closed on this side.")

    async def send_eof(self, channel: int = 0) -> None:
        """No more data from here on `channel`. Nothing happens on a stream that is over."""
        await self._wire.room()
        if not self.over:
            self._wire.transmit(frames.encode(FrameType.EOF, self.id, b"", channel))

    async def control(self, value: Mapping[str, object]) -> None:
        """Act on the stream's subject. Nothing happens on a stream that is over, or where the peer cannot do it."""
        payload = frames.encode_json(value)
        await self._wire.room()
        if not self.over:
            self._controls += 1
            self._wire.transmit(frames.encode(FrameType.CONTROL, self.id, payload))

    def close(self, value: Mapping[str, object] | None = None) -> None:
        """End the stream from this side. Safe to call twice, and after the peer has closed it."""
        if not self.over:
            self._acknowledge()
            self._wire.transmit(frames.encode(FrameType.CLOSE, self.id, frames.encode_json(value or {})))
            self._wire.drop(self.id)
        self._closed = True
        _wake(self._reader)
        _wake(self._writer)


def again(error: SkerryError) -> SkerryError:
    """A copy of an error that ends many waits: each raises its own, since a traceback grows with each raise."""
    copy = type(error)(error.message)
    copy.__dict__.update(error.__dict__)
    copy.__cause__ = error.__cause__
    return copy


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


async def _within(waiter: asyncio.Future[None], deadline_s: float | None) -> None:
    if deadline_s is None:
        return await waiter
    # asyncio.timeout costs three times as much as this, on the path of each command.
    timer = asyncio.get_running_loop().call_later(deadline_s, _expire, waiter, deadline_s)
    try:
        await waiter
    finally:
        timer.cancel()


def _expire(waiter: asyncio.Future[None], deadline_s: float) -> None:
    if not waiter.done():
        waiter.set_exception(
            DeadlineExceeded(f"The sandbox did not answer for {deadline_s:g} s. It may be overloaded: try again.")
        )
