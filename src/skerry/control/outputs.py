"""What is kept of a command's output while it streams by: the beginning of each channel, and exact counts."""

from dataclasses import dataclass

from skerry.model.command import CommandEvent, Exit, Lost, Output

INLINE_CAP = 1_048_576  # bytes of each channel that an answer carries


@dataclass(frozen=True, slots=True)
class Captured:
    """The first INLINE_CAP bytes of each channel. `output_bytes` counts both channels, lost bytes included."""

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    output_bytes: int = 0
    lost_bytes: int = 0
    exit: Exit | None = None


class Capture:
    """Takes a command's events one by one in flat memory. `offset` is where to go on after a broken stream."""

    def __init__(self) -> None:
        self._heads = {1: bytearray(), 2: bytearray()}
        self._cut = {1: False, 2: False}
        self._lost = 0
        self.offset = 0
        self.exit: Exit | None = None

    def add(self, event: CommandEvent) -> None:
        match event:
            case Output(channel, offset, data):
                head = self._heads[2 if channel == 2 else 1]
                room = INLINE_CAP - len(head)
                head += data[:room] if len(data) > room else data
                if len(data) > room:
                    self._cut[2 if channel == 2 else 1] = True
                self.offset = offset + len(data)
            case Lost(offset, length):
                self._lost += length
                self.offset = offset + length
            case Exit():
                self.exit = event

    def result(self) -> Captured:
        return Captured(
            stdout=bytes(self._heads[1]),
            stderr=bytes(self._heads[2]),
            stdout_truncated=self._cut[1],
            stderr_truncated=self._cut[2],
            output_bytes=max(self.offset, self.exit.offset if self.exit is not None else 0),
            lost_bytes=self._lost,
            exit=self.exit,
        )
