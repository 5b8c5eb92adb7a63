"""The suite of the seam `Guest`, on the fake and on a real sbxd that runs as an ordinary process."""

from collections.abc import AsyncIterator

import pytest

from skerry.seams import ByteStream
from skerry.testing.fake_guest import FakeGuest
from skerry.testing.guest_suite import GuestSuite, Inside


async def echo(stream: ByteStream) -> None:
    while data := await stream.receive():
        await stream.send(data)
    await stream.send_eof()


class TestFakeGuest(GuestSuite):
    @pytest.fixture
    async def inside(self) -> AsyncIterator[Inside]:
        guest = FakeGuest()
        guest.files.make_directory("/workspace/test", parents=True, mode=0o755)

        async def echo_port() -> int:
            guest.serve(8080, echo)
            return 8080

        yield Inside(guest, "/workspace/test", echo_port)
        await guest.close()
