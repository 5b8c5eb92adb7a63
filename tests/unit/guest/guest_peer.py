"""The other end of a connection, for tests: sbxd as a script, byte by byte, honest or not."""

import asyncio
import hashlib
import hmac
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from skerry.guest import frames
from skerry.guest.connection import Connection, ServerHandler, Timing, connect
from skerry.guest.frames import Decoder, Frame, FrameType

SECRET = bytes(range(32))
BOOT = "ab" * 16
NONCE = "cd" * 32
DEADLINE_S = 10.0
PLAIN = Timing()


class Peer:
    """Speaks frames over the other end of the socketpair."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._ready: list[Frame] = []

    async def send(self, type: FrameType, stream: int, payload: bytes | dict[str, Any] = b"", channel: int = 0) -> None:
        body = frames.encode_json(payload) if isinstance(payload, dict) else payload
        await self.send_raw(frames.encode(type, stream, body, channel))

    async def send_raw(self, data: bytes) -> None:
        async with asyncio.timeout(DEADLINE_S):
            await self._loop.sock_sendall(self.sock, data)

    async def frame(self) -> Frame:
        async with asyncio.timeout(DEADLINE_S):
            while not self._ready:
                data = await self._loop.sock_recv(self.sock, 1 << 18)
                if not data:
                    raise EOFError
                self._ready.extend(self._decoder.feed(data))
            return self._ready.pop(0)

    async def expect(self, type: FrameType) -> Frame:
        frame = await self.frame()
        assert frame.type == type, frame
        return frame

    async def expect_json(self, type: FrameType) -> tuple[int, dict[str, Any]]:
        frame = await self.expect(type)
        return frame.stream, frames.decode_json(frame.payload)

    async def ended(self) -> bool:
        """Whether the host has closed the connection; frames before that are dropped."""
        try:
            while True:
                await self.frame()
        except (EOFError, ConnectionError):
            return True

    async def hello(self, *, secured: bool = False, **other: Any) -> None:
        greeting: dict[str, Any] = {"protocol": 1, "sbxd": "0.1.0", "boot": BOOT, "nonce": NONCE, "secured": secured}
        await self.send(FrameType.HELLO, 0, greeting | other)

    async def greet(self) -> None:
        await self.hello()
        _, answer = await self.expect_json(FrameType.HELLO)
        assert answer == {"protocol": 1, "secret": SECRET.hex()}
        await self.send(FrameType.PONG, 0, b"ok")

    def expected_proof(self) -> str:
        message = b"sbxd-proof-1" + bytes.fromhex(NONCE) + bytes.fromhex(BOOT)
        return hmac.new(SECRET, message, hashlib.sha256).hexdigest()


@contextmanager
def pair() -> Iterator[tuple[socket.socket, Peer]]:
    """Two ends that have not greeted."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Peer(theirs)


@asynccontextmanager
async def connected(
    *, on_server: ServerHandler | None = None, max_server_streams: int = 64, timing: Timing = PLAIN
) -> AsyncIterator[tuple[Connection, Peer]]:
    """A connection that has been greeted, and its peer."""
    with pair() as (ours, peer):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(peer.greet())
            connection = await connect(
                ours,
                secret=SECRET,
                first=True,
                on_server=on_server,
                max_server_streams=max_server_streams,
                timing=timing,
            )
        try:
            yield connection, peer
        finally:
            await connection.close()
