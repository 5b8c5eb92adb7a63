"""One connection to an sbxd: greeting, multiplexing, liveness. Everything on it ends when it ends.

It reads and writes the socket from the event loop's callbacks, without a task of its own. It never interprets an
operation (`sbxd_guest` does) and never reconnects (the node does: it knows whether the sandbox still lives).
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import ParamSpec, TypeVar

from skerry.guest import frames, hello
from skerry.guest.byte_stream import StreamBytes
from skerry.guest.frames import Decoder, Frame, FrameType
from skerry.guest.stream import Stream, again
from skerry.model.errors import DeadlineExceeded, Invalid, ProtocolError, SkerryError, Unavailable

P = ParamSpec("P")
T = TypeVar("T")
ServerHandler = Callable[[StreamBytes], None]

_FRAMES_A_TURN = 256  # then other connections get their turn of the event loop
_HIGH_BYTES = 1 << 20  # senders of data wait above this
_LOW_BYTES = 1 << 18
_MAX_QUEUED_BYTES = 1 << 23  # small frames that cannot wait may fill up to here: then the peer does not read at all
_BUFFERS_A_CALL = 64


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds. A connection on which nothing came for `quiet_s` is asked with PING, and given `silent_s`.

    `quiet_s` holds where something waits for an answer; an idle connection is asked three times as late.
    """

    greeting_s: float = 10.0
    quiet_s: float = 5.0
    silent_s: float = 10.0


async def connect(
    sock: socket.socket,
    *,
    secret: bytes,
    first: bool,
    on_server: ServerHandler | None = None,
    max_server_streams: int = 64,
    timing: Timing = Timing(),
) -> "Connection":
    """Greet the sbxd at the other end of `sock`, and return when it has accepted us. Takes the socket over.

    `first` says that this is the stdio socketpair of a sandbox that was just started: the 32 bytes of `secret` are
    given to it. Otherwise (a bridge) they are proved. `on_server` is handed each stream that is opened from inside
    and must not block: it passes it on to a task of its own, or raises to refuse. None refuses all.

    Raises:
        ProtocolError: sbxd broke the protocol, or is not in the state that `first` says.
        Unavailable: The other end closed the connection; a wrong proof looks like this, too.
        DeadlineExceeded: It did not greet in time. In all cases the socket is closed.
    """
    if len(secret) != hello.SECRET_BYTES:
        raise Invalid(f"A sandbox's secret has {hello.SECRET_BYTES} bytes, this one has {len(secret)}.")
    connection = Connection(sock, on_server, max_server_streams, timing)
    try:
        await connection.greet(secret, first)
    except BaseException:
        connection.abort(Unavailable("The connection to the sandbox was given up during its greeting."))
        raise
    return connection


class Connection:
    """Made by `connect`. `boot` tells one start of sbxd from another. `abort` and `close` are safe to call twice."""

    boot: str = ""
    sbxd_version: str = ""

    def __init__(
        self, sock: socket.socket, on_server: ServerHandler | None, max_server_streams: int, timing: Timing
    ) -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._timing = timing
        self._on_server = on_server
        self._max_server_streams = max_server_streams
        self._decoder = Decoder()
        self._streams: dict[int, Stream] = {}
        self._next_id = 1
        self._last_guest_id = 0
        self._server_streams = 0
        self._greeting: asyncio.Future[hello.Hello] = self._loop.create_future()
        self._proven = False
        self._pongs: dict[bytes, asyncio.Future[None]] = {}
        self._pings_sent = 0
        self._error: SkerryError | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._out: deque[bytes | memoryview] = deque()
        self._out_bytes = 0
        self._writing = False
        self._drained: asyncio.Future[None] | None = None
        self._pumping = False
        self._looks = 0  # since the peer went silent
        self._last_received = self._loop.time()
        self._loop.add_reader(sock.fileno(), self._on_readable)
        self._timer = self._loop.call_later(timing.quiet_s, self._on_timer)

    # -- life --------------------------------------------------------------------------------------------------

    async def greet(self, secret: bytes, first: bool) -> None:
        """The greeting. Called by `connect`, once."""
        try:
            async with asyncio.timeout(self._timing.greeting_s):
                greeting = await self._greeting
                answer = self.checked(hello.answer, greeting, secret, first=first)
                if self._error is not None:  # more came with the greeting, and it was nonsense
                    raise again(self._error)
                accepted = self._pongs[b"ok"] = self._loop.create_future()
                self.transmit(frames.encode(FrameType.HELLO, 0, frames.encode_json(answer)))
                await accepted
        except TimeoutError as error:
            raise DeadlineExceeded(f"The sandbox did not greet within {self._timing.greeting_s:g} s.") from error
        self.boot, self.sbxd_version = greeting.boot, greeting.sbxd
        self._proven = True

    @property
    def error(self) -> SkerryError | None:
        """Why the connection has ended; None while it lives."""
        return self._error

    async def wait_ended(self) -> SkerryError:
        """Return when the connection has ended, with why."""
        await asyncio.shield(self._ended)
        assert self._error is not None
        return self._error

    def abort(self, error: SkerryError) -> None:
        """End the connection now. All that waits on it raises a copy of `error` (the node: `SandboxGone`, if it is)."""
        if self._error is not None:
            return
        self._error = error
        self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        if self._writing:
            self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._out.clear()
        self._out_bytes = 0
        for waiter in (self._greeting, *self._pongs.values()):
            if not waiter.done():
                waiter.set_exception(again(error))
                waiter.exception()  # nobody may be waiting: that is no mistake
        for stream in list(self._streams.values()):
            stream.fail(error)
        self._streams.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        self._ended.set_result(None)

    async def close(self) -> None:
        """End the connection from this side. Commands inside go on."""
        self.abort(Unavailable("The connection to the sandbox has been closed on this side."))

    def broken(self, message: str) -> ProtocolError:
        """The peer broke the rules: ends the connection, and gives the error to raise."""
        error = ProtocolError(message)
        self.abort(error)
        return ProtocolError(message)

    def checked(self, read: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Read an answer with a function that raises ProtocolError on a lie; a lie ends the connection, too."""
        try:
            return read(*args, **named)
        except ProtocolError as error:
            raise self.broken(error.message) from error

    async def ping(self, deadline_s: float = 5.0) -> float:
        """Ask whether sbxd answers; the round trip in seconds.

        Raises:
            DeadlineExceeded: It did not, in time. The connection stays.
        """
        started = self._loop.time()
        pong = self._send_ping()
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.shield(pong)
        except TimeoutError as error:
            raise DeadlineExceeded(f"The sandbox did not answer within {deadline_s:g} s.") from error
        return self._loop.time() - started

    def _send_ping(self) -> asyncio.Future[None]:
        if self._error is not None:
            raise again(self._error)
        self._pings_sent += 1
        payload = self._pings_sent.to_bytes(8, "little")
        pong = self._pongs[payload] = self._loop.create_future()
        self.transmit(frames.encode(FrameType.PING, 0, payload))
        return pong

    def _on_timer(self) -> None:
        """Looks a few times before it gives up: a process that was itself stopped has not read what came."""
        now, timing = self._loop.time(), self._timing
        look_s = min(timing.quiet_s, timing.silent_s) / 4
        delay = timing.quiet_s * (1 if self._streams else 3) - (now - self._last_received)
        if delay > 0:
            self._looks = 0
            delay = min(delay, timing.quiet_s)  # a request may come meanwhile
        elif self._looks * look_s >= timing.silent_s:
            self.abort(Unavailable(f"The sandbox has not answered for {now - self._last_received:.0f} s."))
            return
        else:
            if not self._pongs:
                self._send_ping()
            self._decoder.trim()
            self._looks += 1
            delay = look_s
        if self._error is None:
            self._timer = self._loop.call_later(delay, self._on_timer)

    # -- streams -----------------------------------------------------------------------------------------------

    async def open(
        self, request: Mapping[str, object], *, events_bytes: int | None = None, ahead_bytes: int = 0
    ) -> Stream:
        """Open a stream with this OPEN. It counts until either side closes it: callers close it in `finally`.

        `ahead_bytes` is how much more than INITIAL_CREDIT the peer may send before its bytes are taken.

        Raises:
            Invalid: The request does not fit into a frame.
        """
        payload = frames.encode_json(request)
        await self.room()
        if self._error is not None:
            raise again(self._error)
        if self._next_id > 0xFFFFFFFF:
            raise self._used_up()
        stream = self._streams[self._next_id] = Stream(self, self._next_id, events_bytes=events_bytes)
        self._next_id += 2
        self.transmit(frames.encode(FrameType.OPEN, stream.id, payload))
        if ahead_bytes:
            stream.widen(ahead_bytes)
        return stream

    def _used_up(self) -> SkerryError:
        # Two thousand million streams: a new connection starts from 1 again.
        self.abort(Unavailable("The connection's stream numbers are used up; it has to be opened anew."))
        return Unavailable("The connection's stream numbers are used up; try again.")

    def drop(self, stream_id: int) -> None:
        """The stream is over: frames for it are ignored from now on."""
        if self._streams.pop(stream_id, None) is not None and not stream_id & 1:
            self._server_streams -= 1

    # -- receiving ---------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        if self._pumping:
            return
        try:
            count = self._socket.recv_into(self._decoder.space())
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.abort(Unavailable(f"The connection to the sandbox broke: {error.strerror}."))
            return
        if count == 0:
            self.abort(Unavailable("The sandbox's end of the connection was closed."))
            return
        self._decoder.received(count)
        self._last_received = self._loop.time()
        self._pump()

    def _pump(self) -> None:
        self._pumping = False
        decoder, streams = self._decoder, self._streams
        try:
            for _ in range(_FRAMES_A_TURN):
                if self._error is not None or (frame := decoder.next_frame()) is None:
                    return
                stream = streams.get(frame.stream)
                if stream is not None and frame.type != FrameType.OPEN:
                    stream.on_frame(frame.type, frame.payload, frame.channel)
                else:
                    self._on_other(frame)
        except ProtocolError as error:
            self.abort(error)
            return
        # A flood of tiny frames: go on after the others. Nothing is received meanwhile.
        self._pumping = True
        self._loop.call_soon(self._pump)

    def _on_other(self, frame: Frame) -> None:
        if frame.stream == 0:
            self._on_connection_frame(frame)
        elif not self._proven:
            raise ProtocolError("The peer used a stream before the greeting was over.")
        elif frame.type == FrameType.OPEN:
            self._on_open(frame)
        elif frame.stream >= self._next_id if frame.stream & 1 else frame.stream > self._last_guest_id:
            raise ProtocolError("The peer used a stream that was never opened.")

    def _on_connection_frame(self, frame: Frame) -> None:
        if frame.type == FrameType.PING:
            self.transmit(frames.encode(FrameType.PONG, 0, frame.payload))
        elif frame.type == FrameType.PONG:
            pong = self._pongs.pop(frame.payload, None)
            if pong is None:
                raise ProtocolError("The peer answered a PING that was never sent.")
            if not pong.done():
                pong.set_result(None)
        elif frame.type == FrameType.CLOSE:
            raise ProtocolError("The sandbox refused the connection: it speaks another version of the protocol.")
        elif self._greeting.done():
            raise ProtocolError("The peer greeted twice.")
        else:
            self._greeting.set_result(hello.read_hello(frames.decode_json(frame.payload)))

    def _on_open(self, frame: Frame) -> None:
        # The ids of an honest sbxd rise; that alone shows without a list that none is used twice.
        if frame.stream & 1 or frame.stream <= self._last_guest_id:
            raise ProtocolError("The peer opened a stream with an id that it may not use.")
        self._last_guest_id = frame.stream
        refusal = self._refusal(frames.decode_json(frame.payload).get("op"))
        if refusal is None:
            stream = self._streams[frame.stream] = Stream(self, frame.stream)
            self._server_streams += 1
            assert self._on_server is not None
            try:
                self._on_server(StreamBytes(stream))
            except SkerryError as error:
                stream.close({"error": {"code": "refused", "message": error.message}})
            return
        code, message = refusal
        payload = frames.encode_json({"error": {"code": code, "message": message}})
        self.transmit(frames.encode(FrameType.CLOSE, frame.stream, payload))

    def _refusal(self, op: object) -> tuple[str, str] | None:
        if op != "server":
            return "unknown_op", "The host knows no such operation."
        if self._on_server is None:
            return "refused", "Nothing outside takes connections from this sandbox."
        if self._server_streams >= self._max_server_streams:
            return "limit", "Too many connections to the server are open."
        return None

    # -- sending -----------------------------------------------------------------------------------------------

    def transmit(self, *buffers: bytes | memoryview) -> None:
        """Queue buffers and write what the socket takes. Nothing happens once the connection has ended."""
        if self._error is not None:
            return
        self._out.extend(buffers)
        for buffer in buffers:
            self._out_bytes += len(buffer)
        if not self._writing:
            self._flush()
        if self._out_bytes > _MAX_QUEUED_BYTES:
            self.abort(Unavailable("The sandbox does not read what it is sent."))

    async def room(self) -> None:
        """Wait until the peer has read enough for more to be queued."""
        while self._out_bytes > _HIGH_BYTES:
            if self._drained is None:
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)

    def _flush(self) -> None:
        out = self._out
        try:
            while out:
                sent = self._socket.sendmsg(islice(out, _BUFFERS_A_CALL))
                self._out_bytes -= sent
                while sent:
                    length = len(out[0])
                    if sent < length:
                        out[0] = memoryview(out[0])[sent:]
                        break
                    sent -= length
                    out.popleft()
        except (BlockingIOError, InterruptedError):
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._socket.fileno(), self._flush)
        except OSError as error:
            self.abort(Unavailable(f"The connection to the sandbox broke: {error.strerror}."))
            return
        else:
            if self._writing:
                self._writing = False
                self._loop.remove_writer(self._socket.fileno())
        if self._drained is not None and self._out_bytes <= _LOW_BYTES:
            self._drained.set_result(None)
            self._drained = None
