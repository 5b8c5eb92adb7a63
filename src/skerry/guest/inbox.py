"""Received DATA that its reader has not taken yet, in little more memory than the bytes themselves.

Credit bounds the bytes of a stream, not the number of frames that carry them: 262,144 frames of one byte each would
cost a hundred times their size as objects. So the first few chunks are kept as they came, and what piles up behind
them is packed: bytes in one buffer, and four bytes of bookkeeping for each change of channel. It never waits.
"""

from array import array
from collections import deque

_LOOSE = 64  # chunks kept as they came
_SHIFT = 2  # a run is length << 2 | channel
_COMPACT = 4_096


class Inbox:
    """A queue of (channel, bytes); neighbours of one channel may be joined. An end of file is an empty chunk."""

    def __init__(self) -> None:
        self._loose: deque[tuple[int, bytes]] = deque()
        self._data = bytearray()
        self._runs: array[int] = array("I")
        self._first = 0  # the first run that is not taken yet

    def __bool__(self) -> bool:
        return bool(self._loose) or self._first < len(self._runs)

    def push(self, channel: int, data: bytes) -> None:
        runs = self._runs
        if self._first == len(runs):
            if len(self._loose) < _LOOSE:
                self._loose.append((channel, data))
                return
        elif data and runs[-1] & 3 == channel and runs[-1] >> _SHIFT:
            runs[-1] += len(data) << _SHIFT
            self._data += data
            return
        runs.append(len(data) << _SHIFT | channel)
        self._data += data

    def pop(self) -> tuple[int, bytes]:
        """The oldest chunk. IndexError when there is none."""
        if self._loose:
            return self._loose.popleft()
        run = self._runs[self._first]
        length = run >> _SHIFT
        chunk = bytes(self._data[:length])
        del self._data[:length]
        self._first += 1
        if self._first == len(self._runs) or self._first >= _COMPACT:
            del self._runs[: self._first]
            self._first = 0
        return run & 3, chunk
