"""What a client can make the server hold for a command that reads nothing."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from skerry.edge.terminals import pump

MOST_MESSAGES = 20_000


class Flood:
    """A socket whose client sends one message without end, and reads all."""

    def __init__(self, message: dict[str, Any]) -> None:
        self._message = message
        self.taken = 0
        self.all_taken = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await asyncio.sleep(0)
        self.taken += 1
        if self.taken > MOST_MESSAGES:
            self.all_taken.set()
        return {"type": "websocket.receive", **self._message}

    async def send_text(self, text: str) -> None:
        pass


class Deaf:
    """A command that prints nothing and never reads."""

    async def output(self, offset: int) -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    async def write(self, data: bytes) -> None:
        await asyncio.Event().wait()

    async def revoked(self) -> None:
        await asyncio.Event().wait()

    async def end_input(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("message", [{"text": '{"eof":true}'}, {"bytes": b"x"}, {"bytes": b"x" * 64}])
async def test_small_messages_are_held_back_by_what_they_cost(message: dict[str, Any]) -> None:
    flood = Flood(message)
    pumping = asyncio.ensure_future(pump(flood, Deaf(), 0, channels=False))  # type: ignore[arg-type]
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await flood.all_taken.wait()
    assert not pumping.done()
    pumping.cancel()
    await asyncio.gather(pumping, return_exceptions=True)
