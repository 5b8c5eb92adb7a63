"""The client side of the node's socket: a pool of connections, one call at a time on each.

Knows framing, deadlines and errors; `local.py` and `local_guest.py` know the ops. Never retries: each error says
whether trying again makes sense.
"""

import asyncio
import socket
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import TracebackType

from skerry import logs
from skerry.guest.calls import CallConnection, scratch, unreachable
from skerry.guest.frames import FrameType, decode_json
from skerry.guest.shapes import Json, error_from
from skerry.model.errors import DeadlineExceeded, ProtocolError, Unavailable

CONNECT_S = 5.0
ANSWER_S = 60.0  # a call that answers once, unless it says otherwise
UNCLAIMED_S = 2.0  # how long a call waits to be claimed
_IDLE = 32  # connections kept for the next call
_CONNECTING = 64  # at once: far below the backlog of the node's socket
_BACKLOG_WAIT_S = 0.005

Piece = tuple[int, bytes]  # channel and bytes


class NodeClient:
    """Makes calls. Connections are reused when a call has ended properly, and closed otherwise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._scratch = scratch()
        self._idle: list[CallConnection] = []
        self._connecting = asyncio.Semaphore(_CONNECTING)
        self._left: dict[Hashable, tuple[NodeCall, asyncio.TimerHandle]] = {}
        self._closed = False

    async def open(self, op: str, ask: Mapping[str, object]) -> "NodeCall":
        """Begin a call. Close it when done: `async with`, or `close`.

        Raises:
            Unavailable: The node is not there.
        """
        connection = await self._connection()
        call = NodeCall(self, connection)
        try:
            known = {} if (request := logs.request_id()) is None else {"request": request}
            await connection.send_json(FrameType.OPEN, {"op": op, **known, **ask})
        except BaseException:
            connection.abort()
            raise
        return call

    async def ask(self, op: str, ask: Mapping[str, object], *, deadline_s: float = ANSWER_S) -> Json:
        """A call that has an answer and nothing else.

        Raises:
            DeadlineExceeded: No answer in `deadline_s`. The call is cancelled.
        """
        async with await self.open(op, ask) as call:
            return await call.result(deadline_s)

    async def _connection(self) -> CallConnection:
        while self._idle:
            connection = self._idle.pop()
            if connection.quiet:
                return connection
            connection.abort()
        if self._closed:
            raise Unavailable("This provider has been closed.")
        try:
            async with self._connecting, asyncio.timeout(CONNECT_S):
                return await self._connect()
        except (OSError, TimeoutError) as error:
            raise unreachable(self._path, error) from error

    async def _connect(self) -> CallConnection:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            # asyncio takes the "try again" of a full backlog for a connection under way: connect here instead.
            while True:
                try:
                    sock.connect(str(self._path))
                    break
                except BlockingIOError:
                    await asyncio.sleep(_BACKLOG_WAIT_S)
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_unix_connection(lambda: CallConnection(self._scratch), sock=sock)
            return connection
        except BaseException:
            sock.close()
            raise

    def leave(self, key: Hashable, call: "NodeCall") -> None:
        """Leave a call that runs for whoever `claim`s it next; it is closed when nobody does for a moment."""
        self._drop(key)
        timer = asyncio.get_running_loop().call_later(UNCLAIMED_S, self._drop, key)
        self._left[key] = call, timer

    def claim(self, key: Hashable) -> "NodeCall | None":
        """The call that was left under this key, once. None if the node has gone since."""
        left = self._left.pop(key, None)
        if left is None:
            return None
        call, timer = left
        timer.cancel()
        return None if call.lost else call

    def _drop(self, key: Hashable) -> None:
        left = self._left.pop(key, None)
        if left is not None:
            call, timer = left
            timer.cancel()
            call.close()

    def give_back(self, connection: CallConnection) -> None:
        if connection.quiet and len(self._idle) < _IDLE and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()

    async def close(self) -> None:
        """End connections that nobody uses. Calls that run keep theirs until they end."""
        self._closed = True
        for key in list(self._left):
            self._drop(key)
        for connection in self._idle:
            connection.close()
        self._idle.clear()
        await asyncio.sleep(0)  # lets the transports close


class NodeCall:
    """A call that runs. `next` gives what the node sends; `result` is its end."""

    def __init__(self, client: NodeClient, connection: CallConnection) -> None:
        self._client = client
        self._connection: CallConnection | None = connection
        self._result: Json | None = None

    async def __aenter__(self) -> "NodeCall":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def next(self, deadline_s: float | None = None) -> Piece | Json | None:
        """The next bytes or event; None when the call has ended (see `result`). A piece of no bytes is an EOF.

        Raises:
            Unavailable: The node has gone.
            DeadlineExceeded: Nothing came in `deadline_s` seconds.
        """
        if self._connection is None:
            return None
        if deadline_s is None:
            received = await self._connection.receive()
        else:
            try:
                async with asyncio.timeout(deadline_s):
                    received = await self._connection.receive()
            except TimeoutError:
                self.close()
                raise DeadlineExceeded(f"The node did not answer in {deadline_s:g} s. Its log may say why.") from None
        if received is None:
            self.close()
            raise Unavailable("The node went away in the middle of the call. It comes back by itself: try again.")
        type, channel, payload = received
        if type == FrameType.DATA or type == FrameType.EOF:
            return channel, payload
        if type == FrameType.EVENT:
            return decode_json(payload)
        if type != FrameType.CLOSE:
            self.close()
            raise ProtocolError(f"The node sent a frame of type {type}, which has no place in a call.")
        self._result = decode_json(payload)
        connection, self._connection = self._connection, None
        self._client.give_back(connection)
        return None

    async def event(self, deadline_s: float | None = ANSWER_S) -> Json:
        """The next event. Raises the call's error if it ended instead."""
        told = await self.next(deadline_s)
        if isinstance(told, dict):
            return told
        if told is None:
            self.check()
        raise ProtocolError("The node sent something other than the event that this call begins with.")

    async def result(self, deadline_s: float | None = ANSWER_S) -> Json:
        """What the call ended with; raises its error. Whatever came before is dropped."""
        while await self.next(deadline_s) is not None:
            pass
        return self.check()

    def check(self) -> Json:
        """The result of a call that has ended; raises its error."""
        result = self._result
        if result is None:
            raise Unavailable("The call was closed before it ended.")
        if (error := result.get("error")) is not None:
            raise error_from(error)
        return result

    @property
    def lost(self) -> bool:
        return self._connection is None or self._connection.lost

    @property
    def answered(self) -> bool:
        """The node has sent something that was not taken yet, or has ended the call."""
        return self._connection is None or not self._connection.quiet

    async def send(self, data: bytes) -> None:
        """Send bytes. Raises the call's own error when the node has ended it meanwhile."""
        if self._connection is None:
            self.check()
            raise Unavailable("The call has ended.")
        await self._connection.send_data(data)

    async def send_eof(self) -> None:
        if self._connection is not None:
            await self._connection.send(FrameType.EOF)

    def close(self) -> None:
        """Give the call up, if it has not ended: the node cancels it. Safe to call twice."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None
