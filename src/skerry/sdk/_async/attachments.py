"""A live connection to a command or terminal: its output, and input to it. A broken one is taken up again by offset."""

import json
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING

from websockets.exceptions import ConnectionClosed, WebSocketException

from skerry.model.errors import SkerryError, Unavailable
from skerry.sdk._async.clock import sleep
from skerry.sdk._async.http import AsyncHttp, query
from skerry.sdk.attachment import Ended, Reader
from skerry.sdk.backoff import delay_s
from skerry.sdk.errors import Unreachable
from skerry.sdk.results import Lost, Output
from skerry.sdk.sockets import ENDED, SANDBOX_GONE, broken, connect_async, keep_alive, refused

if TYPE_CHECKING:
    from skerry.sdk.sockets import AsyncWebSocket

RECONNECT_S = 60.0
RETRY_S = 0.05
_NOBODY = "It has ended: nobody reads its input any more."
PIECE = 1 << 18  # bytes of input a message; the server takes up to 1 MiB


class AsyncAttachment:
    """Made by `terminal.attach()` and `running.attach()`, used as a context manager. Leaving it ends nothing inside.

    `events()` is to be read all the time: it also is what takes a broken connection up again. Input that was on its
    way when a connection broke may be lost. `ended` is known after the last event.
    """

    def __init__(self, http: AsyncHttp, path: str, offset: int, *, channels: bool) -> None:
        self._http = http
        self._path = path
        self._reader = Reader(offset, channels=channels)
        self._stack = AsyncExitStack()
        self._socket: AsyncWebSocket | None = None
        self._failed: SkerryError | None = None

    @property
    def offset(self) -> int:
        """The position in the output behind all that has come: give it to `attach` to go on from there."""
        return self._reader.offset

    @property
    def ended(self) -> Ended | None:
        """How it ended; None while it runs."""
        return self._reader.ended

    @property
    def connected(self) -> bool:
        """False while a broken connection is being taken up again."""
        return self._socket is not None

    async def events(self) -> AsyncGenerator[Output | Lost]:
        """Output as it comes, to the end.

        Raises:
            SandboxGone: The sandbox has ended.
            Unreachable, Unavailable: No connection for a minute. The command goes on.
        """
        while True:
            if self._socket is not None:
                socket = self._socket
                try:
                    async for message in socket:
                        event = self._reader.take(message)
                        if event is not None:
                            yield event
                except ConnectionClosed:
                    pass  # the code says why
                self._socket = None
                if self.ended is not None:
                    return
                code, reason = socket.close_code, socket.close_reason or ""
                failure = broken(code, self._reader.error, reason)
                if not isinstance(failure, Unavailable):
                    raise self._over(failure)
            await self._again()

    async def send(self, data: bytes | str) -> None:
        """Pass bytes on to its input; waits while it does not read, or while the connection is taken up again.

        Raises:
            Unavailable, SandboxGone: It has ended, or there is no connection any more.
        """
        content = data.encode() if isinstance(data, str) else data
        for start in range(0, len(content), PIECE):
            await self._send(content[start : start + PIECE])

    async def end_input(self) -> None:
        """End of input, behind the bytes sent before; on a terminal its end-of-file key."""
        await self._send(json.dumps({"eof": True}))

    async def resize(self, cols: int, rows: int) -> None:
        """Give a terminal another size, for all that look at it."""
        await self._send(json.dumps({"resize": {"cols": cols, "rows": rows}}))

    async def signal(self, signal: int | str) -> None:
        """A signal, by number or name, to its main program's process group. `RunningCommand.signal` reaches all."""
        await self._send(json.dumps({"signal": signal}))

    async def _send(self, message: bytes | str) -> None:
        begun = time.monotonic()
        while True:
            socket = self._socket
            if socket is not None:
                try:
                    await socket.send(message)
                    return
                except ConnectionClosed:
                    # Else it is taken up again by `events`, which may be yet to be gone through.
                    if socket.close_code in (ENDED, SANDBOX_GONE):
                        raise Unavailable(_NOBODY, code="ended") from None
            if self._failed is not None:
                raise self._failed
            if self.ended is not None:
                raise Unavailable(_NOBODY, code="ended")
            if time.monotonic() - begun > RECONNECT_S:
                raise Unavailable("The connection is broken, and nobody goes through the events to take it up again.")
            await sleep(RETRY_S)

    async def _again(self) -> None:
        attempt, lost_at = 0, time.monotonic()
        while True:
            try:
                await self._connect()
                return
            except Unavailable as error:
                if time.monotonic() - lost_at > RECONNECT_S:
                    raise self._over(error) from error
            except SkerryError as error:
                raise self._over(error) from error
            await sleep(delay_s(attempt))
            attempt += 1

    def _over(self, failure: SkerryError) -> SkerryError:
        self._failed = failure
        return failure

    async def _connect(self) -> None:
        self._reader.error = None
        await self._stack.aclose()
        url = f"{self._http.url}{self._path}{query({'offset': self.offset})}"
        try:
            socket = await self._stack.enter_async_context(connect_async(url, self._http.headers))
        except (OSError, WebSocketException) as error:
            raise refused(self._http.url, error) from error
        keep_alive(socket)
        self._socket = socket

    async def __aenter__(self) -> "AsyncAttachment":
        await self._connect()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._failed = self._failed or Unreachable("This attachment has been left.")
        self._socket = None
        await self._stack.aclose()
