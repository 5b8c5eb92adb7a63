"""Server-sent events out of bytes as they arrive. Does no I/O, so that both halves of the client share it."""

from collections.abc import Iterator
from dataclasses import dataclass

from skerry.model.errors import ProtocolError

MAX_EVENT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event. `data` is what the server sent, its lines joined by line feeds."""

    name: str
    data: bytes
    id: str | None


class Decoder:
    """Takes bytes in any cuts and gives whole events (WHATWG HTML, "Server-sent events", with \\n or \\r\\n lines)."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._searched = 0

    def feed(self, data: bytes) -> Iterator[ServerEvent]:
        """Events that `data` completes.

        Raises:
            ProtocolError: An event is longer than `MAX_EVENT_BYTES`.
        """
        self._held += data.replace(b"\r", b"")  # our server's data is base64 or JSON: no bare carriage return in it
        start = 0
        while (end := self._held.find(b"\n\n", max(start, self._searched))) >= 0:
            event = _parse(bytes(self._held[start:end]))
            start = end + 2
            if event is not None:
                yield event
        del self._held[:start]
        self._searched = max(len(self._held) - 1, 0)
        if len(self._held) > MAX_EVENT_BYTES:
            raise ProtocolError("The server sent an event that does not end.")


def _parse(block: bytes) -> ServerEvent | None:
    name, event_id, data = "message", None, list[bytes]()
    for line in block.split(b"\n"):
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode("utf-8", "replace")
        elif key == b"id":
            event_id = value.decode("utf-8", "replace")
    return ServerEvent(name, b"\n".join(data), event_id) if data or name != "message" else None
