"""Following one command's events: what was seen, how far, and how it ended. Does no I/O; both halves share it."""

import base64
import json
from collections.abc import Iterator

from skerry.model.errors import ProtocolError, SkerryError, Unavailable
from skerry.sdk.results import COLLECT_BYTES, Lost, Output, Stream
from skerry.sdk.sse import Decoder
from skerry.wire.commands import CommandView


class Follower:
    """`offset` is where to go on after a broken connection; `view` is set once the end was seen.

    `lost_bytes` counts what was lost since the first offset, over all connections.
    """

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.view: CommandView | None = None
        self._decoder = Decoder()
        self.lost_bytes = 0
        self._kept: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}

    def take(self, chunk: bytes) -> Iterator[Output | Lost]:
        """The events that `chunk` completes. `offset` moves on before each is handed out.

        Raises:
            Unavailable: The server cannot go on now; a later call with the offset can.
            ProtocolError: An event is none of a command.
        """
        try:
            yield from self._take(chunk)
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError("The server told of a command in a form that is not known.") from error

    def _take(self, chunk: bytes) -> Iterator[Output | Lost]:
        for event in self._decoder.feed(chunk):
            if event.name == "stdout" or event.name == "stderr":
                data = base64.b64decode(event.data)
                self.offset = int(event.id) if event.id else self.offset + len(data)
                yield Output(event.name, data, self.offset)
            elif event.name == "lost":
                gap = json.loads(event.data)
                lost = Lost(int(gap["offset"]), int(gap["length"]))
                self.offset = lost.offset + lost.length
                self.lost_bytes += lost.length
                yield lost
            elif event.name == "end":
                self.view = CommandView.model_validate_json(event.data)
            elif event.name == "error":
                told = json.loads(event.data)
                kind = Unavailable if told["code"] == Unavailable.code else SkerryError
                raise kind(str(told["message"]), code=str(told["code"]))

    def reconnect(self) -> None:
        """Forget half an event of a broken connection."""
        self._decoder = Decoder()

    def collect(self, output: Output) -> None:
        """Keep the first of each stream for the result."""
        kept = self._kept[output.stream]
        kept += output.data[: COLLECT_BYTES - len(kept)]

    def collected(self, stream: Stream) -> bytes:
        return bytes(self._kept[stream])

    def ended(self) -> CommandView:
        """The command's end, with `lost_bytes` as counted here."""
        if self.view is None:
            raise ProtocolError("The stream ended without the command's end.")
        return self.view.model_copy(update={"lost_bytes": self.lost_bytes})
