"""Stops sending a request whose answer is there already. Without it an upload that the server has refused is sent on.

The HTTP library looks for an answer when it has sent all, or when sending fails: here sending fails as soon as the
server has said something. Only on plain connections: what is readable under TLS may be the protocol's own.

The library sends a request's head and its body apart, and the server wakes up for each. A head that announces a small
body waits for it here.
"""

import re
from contextlib import suppress
from typing import Any, cast

import httpcore2
import httpx2

PIECE = 262_144
_SMALL_BODY = re.compile(rb"\r\ncontent-length: [1-9][0-9]{0,3}\r\n", re.IGNORECASE)


class AsyncEarlyStream(httpcore2.AsyncNetworkStream):
    """A connection. Everything is passed on; `write` looks for an answer between pieces."""

    def __init__(self, inner: httpcore2.AsyncNetworkStream) -> None:
        self._inner = inner
        self._held = b""

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._held:
            with suppress(httpcore2.WriteError):  # as the library does: there may be an answer nevertheless
                await self.write(b"", timeout)
        return await self._inner.read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self._held:
            buffer, self._held = self._held + buffer, b""
        elif buffer.endswith(b"\r\n\r\n") and _SMALL_BODY.search(buffer):
            self._held = buffer
            return
        if len(buffer) <= PIECE:
            self._check()
            await self._inner.write(buffer, timeout)
            return
        whole = memoryview(buffer)
        for at in range(0, len(whole), PIECE):
            self._check()
            # A view is as good as bytes to a socket, and no copy.
            await self._inner.write(cast(bytes, whole[at : at + PIECE]), timeout)

    def _check(self) -> None:
        if self._inner.get_extra_info("is_readable"):
            raise httpcore2.WriteError("The server has answered, or closed the connection.")

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore2.AsyncNetworkStream:
        return await self._inner.start_tls(ssl_context, server_hostname, timeout)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class AsyncEarlyBackend(httpcore2.AsyncNetworkBackend):
    """Makes such connections with the library's own means."""

    def __init__(self, inner: httpcore2.AsyncNetworkBackend) -> None:
        self._inner = inner

    async def connect_tcp(self, *given: Any, **named: Any) -> httpcore2.AsyncNetworkStream:
        return AsyncEarlyStream(await self._inner.connect_tcp(*given, **named))

    async def connect_unix_socket(self, *given: Any, **named: Any) -> httpcore2.AsyncNetworkStream:
        return AsyncEarlyStream(await self._inner.connect_unix_socket(*given, **named))

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)


def notice_early_answers(client: httpx2.AsyncClient) -> None:
    """Have `client` notice them. Its library, which is pinned, has no public place for this."""
    pool = cast(Any, client)._transport._pool
    pool._network_backend = AsyncEarlyBackend(pool._network_backend)
