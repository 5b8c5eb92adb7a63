"""A `ByteStream` in memory, in joined pairs. For fakes and tests."""

import asyncio

from skerry.model.errors import Unavailable

_BUFFER_BYTES = 65_536


class _Pipe:
    """One direction: a bounded buffer that one end fills and the other empties."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.changed = asyncio.Condition()

    async def put(self, data: bytes) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.data) < _BUFFER_BYTES or self.ended)
            if self.ended:
                raise Unavailable("The stream has been closed.")
            self.data += data
            self.changed.notify_all()

    async def get(self) -> bytes:
        async with self.changed:
            await self.changed.wait_for(lambda: bool(self.data) or self.ended)
            taken = bytes(self.data)
            self.data.clear()
            self.changed.notify_all()
            return taken

    async def end(self) -> None:
        async with self.changed:
            self.ended = True
            self.changed.notify_all()


class FakeStream:
    """One end of a pair made by `stream_pair`. Half-closable; a sender waits while the other end does not read."""

    def __init__(self, incoming: _Pipe, outgoing: _Pipe) -> None:
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> bytes:
        return await self._incoming.get()

    async def send(self, data: bytes) -> None:
        await self._outgoing.put(data)

    async def send_eof(self) -> None:
        await self._outgoing.end()

    async def close(self) -> None:
        await self._outgoing.end()
        await self._incoming.end()


def stream_pair() -> tuple[FakeStream, FakeStream]:
    """Two ends of one stream."""
    there, back = _Pipe(), _Pipe()
    return FakeStream(there, back), FakeStream(back, there)
