"""Frames: the framing that `sbxd/PROTOCOL.md` describes, as pure functions and one incremental decoder.

For both byte streams that carry frames: host ↔ sbxd, and API ↔ node. It knows frame types and their limits, never an
`op`, a credit or a socket. Whatever is wrong with received bytes is a `ProtocolError`, found before anything is
allocated for it: the peer may be hostile.
"""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import Any, NamedTuple, NoReturn, cast

from skerry.model.errors import Invalid, ProtocolError

MAX_PAYLOAD = 262_144
INITIAL_CREDIT = 262_144
HEADER_BYTES = 12
MAX_PING = 64
MAX_JSON_DEPTH = 32

_HEADER = struct.Struct("<IBBHI")
_CREDIT = struct.Struct("<I")
_IDLE_BYTES = 8_192  # a connection at rest holds no more than this
_BUSY_BYTES = 2 * (MAX_PAYLOAD + HEADER_BYTES)


class FrameType(IntEnum):
    HELLO = 1
    OPEN = 2
    DATA = 3
    EOF = 4
    CREDIT = 5
    CONTROL = 6
    EVENT = 7
    CLOSE = 8
    PING = 9
    PONG = 10


class Channel(IntEnum):
    """What DATA and EOF belong to. MAIN is also stdin."""

    MAIN = 0
    STDOUT = 1
    STDERR = 2


class Frame(NamedTuple):
    """One frame. `type` is a `FrameType` value, `channel` 0 on all that is neither DATA nor EOF."""

    type: int
    stream: int
    payload: bytes = b""
    channel: int = 0


# Plain integers: an enum's members cost a lookup a frame on the hot path.
_DATA, _EOF, _CLOSE = int(FrameType.DATA), int(FrameType.EOF), int(FrameType.CLOSE)
_SHORTEST = {_DATA: 1, int(FrameType.CREDIT): 4}
_LONGEST = {
    _EOF: 0,
    int(FrameType.CREDIT): 4,
    int(FrameType.PING): MAX_PING,
    int(FrameType.PONG): MAX_PING,
}
_ON_CONNECTION = frozenset({int(FrameType.HELLO), int(FrameType.PING), int(FrameType.PONG)})
_FIRST, _LAST = int(FrameType.HELLO), int(FrameType.PONG)


def encode_header(type: int, stream: int, length: int, channel: int = 0) -> bytes:
    """The 12 bytes before a payload of `length` bytes, for a sender that writes the payload from where it lies."""
    return _HEADER.pack(length, type, channel, 0, stream)


def encode(type: int, stream: int, payload: bytes = b"", channel: int = 0) -> bytes:
    """A whole frame.

    Raises:
        Invalid: The payload is longer than MAX_PAYLOAD.
    """
    if len(payload) > MAX_PAYLOAD:
        raise Invalid(f"A frame carries at most {MAX_PAYLOAD} bytes, this payload has {len(payload)}: split it.")
    return _HEADER.pack(len(payload), type, channel, 0, stream) + payload


def encode_credit(stream: int, amount: int) -> bytes:
    """A CREDIT frame for `amount` more bytes."""
    return _HEADER.pack(4, FrameType.CREDIT, 0, 0, stream) + _CREDIT.pack(amount)


def decode_credit(payload: bytes) -> int:
    """The amount in a CREDIT frame's payload (the decoder has seen to its length)."""
    return _CREDIT.unpack(payload)[0]


def encode_json(value: Mapping[str, object]) -> bytes:
    """A JSON payload. Lone surrogates (`os.fsdecode` of odd bytes) travel as `\\udcXX`, as the protocol wants them.

    Raises:
        Invalid: It does not fit into one frame.
    """
    payload = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    if len(payload) > MAX_PAYLOAD:
        raise Invalid(
            f"The request takes {len(payload)} bytes, and one request has room for {MAX_PAYLOAD}: "
            "shorten the command or its environment, or put the data into a file."
        )
    return payload


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_JSON = json.JSONDecoder(parse_constant=_no_constant)
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKET = re.compile(rb"[\[\]{}]")


def decode_json(payload: bytes) -> dict[str, Any]:
    """The object in a JSON payload, at most MAX_JSON_DEPTH deep. Strings may hold lone surrogates.

    Raises:
        ProtocolError: Not UTF-8, not JSON, not an object, nested too deep, or a number of absurd length.
    """
    if payload.count(b"[") + payload.count(b"{") > MAX_JSON_DEPTH and _depth(payload) > MAX_JSON_DEPTH:
        raise ProtocolError(f"The peer sent JSON nested deeper than {MAX_JSON_DEPTH}.")
    try:
        value = _JSON.decode(payload.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"The peer sent something that is not JSON ({str(error)[:100]}).") from error
    if type(value) is not dict:
        raise ProtocolError("The peer sent JSON that is not an object.")
    return cast(dict[str, Any], value)


def _depth(payload: bytes) -> int:
    """How deep brackets nest outside of strings. Only asked when there are many, so that common payloads skip it."""
    depth = deepest = 0
    for bracket in _BRACKET.findall(_STRING.sub(b"", payload)):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def check_header(length: int, type: int, channel: int, reserved: int, stream: int) -> None:
    """Refuse a header that no frame may have.

    Raises:
        ProtocolError: With what is wrong.
    """
    if not _FIRST <= type <= _LAST:
        raise ProtocolError(f"The peer sent a frame of the unknown type {type}.")
    if not _SHORTEST.get(type, 0) <= length <= _LONGEST.get(type, MAX_PAYLOAD):
        raise ProtocolError(f"The peer sent a {FrameType(type).name} frame of {length} bytes.")
    if reserved or channel > 2 or (channel and type not in (_DATA, _EOF)):
        raise ProtocolError(f"The peer sent a {FrameType(type).name} frame with a bad channel or reserved field.")
    # CLOSE on stream 0 refuses the whole connection; nothing else may stand on the wrong kind of stream.
    if (stream == 0) != (type in _ON_CONNECTION) and not (stream == 0 and type == _CLOSE):
        raise ProtocolError(f"The peer sent a {FrameType(type).name} frame on stream {stream}.")


class Decoder:
    """Takes bytes as they come, gives frames as they are complete.

    For a socket: receive into `space()`, tell `received(n)`, then take `next_frame()` until it is None. For bytes in
    hand: `feed(data)`. The buffer grows while large reads fill it, to a little over two frames, and `trim()` returns
    it to a few kilobytes. After a ProtocolError the decoder stays unusable.
    """

    def __init__(self) -> None:
        self._view = memoryview(bytearray(_IDLE_BYTES))
        self._start = 0
        self._end = 0
        self._wanted = HEADER_BYTES  # bytes from _start on until the next frame is complete
        self._bad: str | None = None

    @property
    def pending_bytes(self) -> int:
        """Bytes received and not yet given out as frames."""
        return self._end - self._start

    def space(self) -> memoryview:
        """Where to receive into: never empty, valid until the next call of any method."""
        size = len(self._view)
        if self._start == self._end:
            if self._end == size and size < _BUSY_BYTES:  # the last read filled it: more is on its way
                self._move_to(size * 4)
            self._start = self._end = 0
        elif self._start + self._wanted > size or self._end == size:
            if self._wanted > size or self._end - self._start > size // 2:
                size = max(size * 4, self._wanted)
            self._move_to(size)
        return self._view[self._end :]

    def _move_to(self, size: int) -> None:
        pending = self._end - self._start
        size = min(size, _BUSY_BYTES)
        if size == len(self._view):
            self._view[:pending] = self._view[self._start : self._end]
        else:
            fresh = memoryview(bytearray(size))
            fresh[:pending] = self._view[self._start : self._end]
            self._view = fresh
        self._start, self._end = 0, pending

    def received(self, count: int) -> None:
        """`count` bytes have been put at the beginning of `space()`."""
        self._end += count

    def next_frame(self) -> Frame | None:
        """The next complete frame, or None until more bytes have come.

        Raises:
            ProtocolError: The header is bad. Raised as soon as the header is there, and again on each later call.
        """
        start = self._start
        have = self._end - start
        if have < self._wanted:
            return None
        length, type, channel, reserved, stream = _HEADER.unpack_from(self._view, start)
        if self._wanted == HEADER_BYTES:
            if self._bad is not None:
                raise ProtocolError(self._bad)
            try:
                check_header(length, type, channel, reserved, stream)
            except ProtocolError as error:
                self._bad = error.message
                raise
            if have < HEADER_BYTES + length:
                self._wanted = HEADER_BYTES + length
                return None
        body = start + HEADER_BYTES
        self._start = body + length
        self._wanted = HEADER_BYTES
        return Frame(type, stream, bytes(self._view[body : self._start]), channel)

    def feed(self, data: bytes | bytearray | memoryview) -> Iterator[Frame]:
        """The frames that `data` completes. Exhaust it before feeding more."""
        rest = memoryview(data)
        while len(rest):
            space = self.space()
            count = min(len(space), len(rest))
            space[:count] = rest[:count]
            self.received(count)
            rest = rest[count:]
            while (frame := self.next_frame()) is not None:
                yield frame

    def trim(self) -> None:
        """Give a large buffer back when nothing is pending. To be called now and then on a quiet connection."""
        if self._start == self._end and len(self._view) > _IDLE_BYTES:
            self._view = memoryview(bytearray(_IDLE_BYTES))
            self._start = self._end = 0
