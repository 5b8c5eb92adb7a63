"""A client's end of a terminal's or command's WebSocket, for tests."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

DEADLINE_S = 60.0


class Socket:
    """What has been shown, counted whole, and what was told."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.shown = b""
        self.told: list[dict[str, Any]] = []

    async def next(self) -> None:
        message = await asyncio.wait_for(self.connection.recv(), DEADLINE_S)
        if isinstance(message, bytes):
            self.shown += message
        else:
            self.told.append(json.loads(message))

    async def shows(self, data: bytes) -> None:
        """Wait until `data` has been shown."""
        while data not in self.shown:
            await self.next()

    async def shows_next(self, data: bytes) -> None:
        """Wait until `data` has been shown since the last call, and forget all up to it."""
        await self.shows(data)
        self.shown = self.shown.partition(data)[2]

    async def ends(self) -> tuple[int | None, str | None]:
        """Read on to the end: its close code and reason."""
        try:
            while True:
                await self.next()
        except ConnectionClosed:
            return self.connection.close_code, self.connection.close_reason

    @property
    def exit(self) -> dict[str, Any]:
        return self.told[-1]["exit"]

    async def types(self, text: str) -> None:
        await self.connection.send(text.encode())

    async def control(self, **told: object) -> None:
        await self.connection.send(json.dumps(told))


@asynccontextmanager
async def attached(url: str, path: str, key: str, *, slow: bool = False, **query: object) -> AsyncIterator[Socket]:
    """Open `path`/ws. `slow`: what is not asked for stays with the server, but for a few kilobytes."""
    address = f"{url.replace('http', 'ws', 1)}{path}/ws" + (f"?{urlencode(query)}" if query else "")
    options: dict[str, Any] = {"additional_headers": {"Authorization": f"Bearer {key}"}, "compression": None}
    if slow:
        own = socket.socket()
        own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        own.setblocking(False)
        await asyncio.get_running_loop().sock_connect(own, (urlsplit(url).hostname, urlsplit(url).port))
        options |= {"sock": own, "max_queue": 1}
    async with connect(address, max_size=None, ping_interval=None, **options) as connection:
        yield Socket(connection)
