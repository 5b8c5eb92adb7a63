"""What is said on a command's WebSocket, read into plain values. Knows no connection; see `skerry.wire.terminals`."""

import json
from dataclasses import dataclass
from typing import Any, cast

from skerry.model.errors import ProtocolError
from skerry.sdk.results import Lost, Output, Stream, shell_code

_STREAMS: dict[int, Stream] = {1: "stdout", 2: "stderr"}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command or terminal ended. `exit_code` and `signal` exclude each other; both None: see `reason`."""

    exit_code: int | None
    signal: int | None
    timed_out: bool
    reason: str | None
    message: str | None

    @property
    def shell_code(self) -> int:
        """The exit code that a shell would show, see `results.shell_code`."""
        return shell_code(self.exit_code, self.signal, self.reason, self.message, timed_out=self.timed_out)


class Reader:
    """Counts what has come, so that it is known where to go on. `channels`: a byte before output says which stream."""

    def __init__(self, offset: int, *, channels: bool) -> None:
        self.offset = offset
        self.ended: Ended | None = None
        self.error: dict[str, Any] | None = None
        self._channels = channels

    def take(self, message: str | bytes) -> Output | Lost | None:
        """What a message brings to the user; None for what is only noted.

        Raises:
            ProtocolError: It is none of the protocol.
        """
        if isinstance(message, str):
            return self._told(message)
        stream: Stream = "stdout"
        if self._channels:
            if not message or message[0] not in _STREAMS:
                raise ProtocolError("The server sent output of an unknown stream.")
            stream, message = _STREAMS[message[0]], message[1:]
        self.offset += len(message)
        return Output(stream, message, self.offset)

    def _told(self, text: str) -> Lost | None:
        try:
            told = cast(dict[str, Any], dict(json.loads(text).items()))
            if "offset" in told:
                self.offset = int(told["offset"])
            elif "lost" in told:
                lost = Lost(int(told["lost"]["offset"]), int(told["lost"]["length"]))
                self.offset = lost.offset + lost.length
                return lost
            elif "exit" in told:
                self.ended = _ended(told["exit"])
            elif "error" in told:
                self.error = dict(told["error"])
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ProtocolError("The server sent a control message that cannot be read.") from error
        return None


def _ended(told: dict[str, Any]) -> Ended:
    return Ended(
        exit_code=told.get("code"),
        signal=told.get("signal"),
        timed_out=bool(told.get("timed_out")),
        reason=told.get("reason"),
        message=told.get("message"),
    )
