"""A stream seen as a plain two-way byte stream (`seams.ByteStream`): ports, and what is opened from inside."""

from skerry.guest.frames import Channel
from skerry.guest.stream import Stream


class StreamBytes:
    """Half-closable. Bytes that `receive` returned are acknowledged at its next call: that is the back pressure."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._taken = 0
        self._ended = False

    async def receive(self) -> bytes:
        """The next bytes, or b"" at the end; b"" again when called after it.

        Raises:
            GuestError: The other end failed; its code says how.
        """
        if self._ended:
            return b""
        self._stream.consumed(self._taken)
        self._taken = 0
        item = await self._stream.chunk()
        if item is None:
            if not self._stream.finished:
                raise self._stream.reject("an event that a port does not have")
            self._ended = True
            await self._stream.result()
            return b""
        channel, data = item
        if channel != Channel.MAIN:
            raise self._stream.reject("data on a channel that a port does not have")
        self._taken = len(data)
        self._ended = not data
        return data

    async def send(self, data: bytes) -> None:
        """Send all of it; waits while the other end does not read.

        Raises:
            Unavailable: The stream is closed.
        """
        await self._stream.send(data)

    async def send_eof(self) -> None:
        """End this direction; the other stays open."""
        await self._stream.send_eof()

    async def close(self) -> None:
        """End both directions. Safe to call twice."""
        self._stream.close()
