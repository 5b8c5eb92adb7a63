"""The server side of the node's socket: who may call, one call at a time a connection, errors as data.

A call's handler is cancelled when its client closes the connection. Knows framing and permissions; the ops are a table
that it is given.
"""

import asyncio
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import structlog

from skerry import logs
from skerry.guest.calls import CallConnection, scratch
from skerry.guest.frames import FrameType, decode_json
from skerry.guest.shapes import Json, error_to
from skerry.model.errors import Invalid, ProtocolError, Refused, SkerryError, Unavailable
from skerry.node.tasks import root_cause

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_BACKLOG = 512
_LONGEST_PATH = 107  # sockaddr_un

log = structlog.get_logger()


class Call:
    """A call as its handler sees it: what was asked, and the way back."""

    def __init__(self, connection: CallConnection, ask: Json) -> None:
        self.ask = ask
        self._connection = connection

    async def event(self, told: Json) -> None:
        await self._connection.send_json(FrameType.EVENT, told)

    async def data(self, data: bytes, channel: int = 0) -> None:
        await self._connection.send_data(data, channel)

    async def eof(self) -> None:
        await self._connection.send(FrameType.EOF)

    async def receive(self) -> bytes:
        """The client's next DATA; b"" at its EOF.

        Raises:
            Unavailable: The client has gone.
            ProtocolError: It sent something else.
        """
        received = await self._connection.receive()
        if received is None:
            raise Unavailable("The caller closed the connection.")
        if received[0] == FrameType.DATA:
            return received[2]
        if received[0] == FrameType.EOF:
            return b""
        raise ProtocolError(f"A frame of type {received[0]} has no place in this call.")


Handler = Callable[[Call], Awaitable[Json | None]]


class Server:
    """Listens on the node's socket from `listen` to `close`. Runs its connections in the task group it is given."""

    def __init__(self, path: Path, ops: Mapping[str, Handler], uids: frozenset[int], gid: int) -> None:
        self._path = path
        self._ops = ops
        self._uids = uids
        self._gid = gid
        self._scratch = scratch()
        self._server: asyncio.Server | None = None
        self._connections: set[_Served] = set()

    async def listen(self, group: asyncio.TaskGroup) -> None:
        """Bind, give the socket to its group, then accept.

        Raises:
            Refused: The path is too long for a socket.
        """
        if len(os.fsencode(self._path)) > _LONGEST_PATH:
            raise Refused(f"{self._path} is too long for a unix socket ({_LONGEST_PATH} bytes): choose a shorter home.")
        self._path.unlink(missing_ok=True)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bound.bind(str(self._path))
        # Nobody can connect before `listen`, so there is no moment with looser permissions.
        os.chown(self._path, 0, self._gid)
        self._path.chmod(0o660)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Served(self, group), sock=bound, backlog=_BACKLOG)

    async def close(self) -> None:
        """Stop listening and end every connection. The calls in them are cancelled."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for connection in list(self._connections):
            connection.abort()

    def admits(self, peer: socket.socket) -> bool:
        raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, uid, _ = _CREDENTIALS.unpack(raw)
        if uid not in self._uids:
            log.warning("refused a caller", uid=uid)
        return uid in self._uids

    async def serve(self, connection: CallConnection) -> None:
        """Answer the calls of one connection until it ends."""
        while (received := await connection.receive()) is not None:
            if received[0] in (FrameType.DATA, FrameType.EOF):
                continue  # the rest of a call that failed before its client had sent everything
            if received[0] != FrameType.OPEN:
                break
            op = "?"
            try:
                ask = decode_json(received[2])
                op = str(ask.get("op"))
                _bind(op, ask)
                answer = await self._handler(op)(Call(connection, ask)) or {}
            except Exception as error:  # noqa: BLE001 - a bug in one call must not end the node; it is logged below
                if connection.lost:
                    break  # the client has gone: whatever that did to the call interests nobody
                answer = {"error": error_to(_told(error, op))}
            await connection.send_json(FrameType.CLOSE, answer)
        connection.close()

    def _handler(self, op: str) -> Handler:
        try:
            return self._ops[op]
        except KeyError:
            raise Invalid(
                f"The node knows no op '{op}'. API and node are of different versions: restart both."
            ) from None

    def joined(self, connection: "_Served") -> None:
        self._connections.add(connection)

    def left(self, connection: "_Served") -> None:
        self._connections.discard(connection)

    @property
    def buffer(self) -> memoryview:
        return self._scratch


def _bind(op: str, ask: Json) -> None:
    """Every line of this call says which it is, and whose request. The connection's earlier call is forgotten."""
    logs.unbind_call()
    known = {logs.REQUEST_ID: ask.get("request"), "sandbox_id": ask.get("sandbox"), "command_id": ask.get("command")}
    logs.bind(op=op, **{name: value for name, value in known.items() if isinstance(value, str)})


def _told(error: Exception, op: str) -> SkerryError:
    """What the client is told. An error that is none of ours is a bug: it is logged, and the node goes on."""
    cause = root_cause(error, SkerryError)
    if isinstance(cause, SkerryError):
        return cause
    log.error("call failed", op=op, exc_info=error)
    return SkerryError(f"The node failed in '{op}' ({type(cause).__name__}). Its log has the details.", code="internal")


class _Served(CallConnection):
    """A connection with the task that serves it; the task is cancelled when the client goes."""

    def __init__(self, server: Server, group: asyncio.TaskGroup) -> None:
        super().__init__(server.buffer)
        self._server = server
        self._group = group
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._server.admits(transport.get_extra_info("socket")):
            self.abort()
            return
        self._server.joined(self)
        self._task = self._group.create_task(self._serve(), name="call")

    async def _serve(self) -> None:
        try:
            await self._server.serve(self)
        except Unavailable:
            pass  # the client went while it was being answered
        except Exception:
            log.exception("connection failed")
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._server.left(self)
        if self._task is not None:
            self._task.cancel()
