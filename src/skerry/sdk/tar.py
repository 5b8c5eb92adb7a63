"""The tar format (POSIX pax, and what GNU tar adds to it), in bytes alone: writing headers, taking an archive apart.

Touches no file. What is read comes from a sandbox: every number and name in it may be a lie.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from skerry.model.errors import ProtocolError

BLOCK = 512
END = bytes(2 * BLOCK)
FILE, HARD_LINK, SYMLINK, DIRECTORY, SPARSE = b"0", b"1", b"2", b"5", b"S"
MAX_META = 2 << 20  # of all extended headers before one entry
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_EMPTY_KINDS = frozenset(b"123456"[i : i + 1] for i in range(6))  # whatever size they state, no content follows
_MOST_PLAIN = 8**11  # what eleven octal digits cannot say


@dataclass(frozen=True, slots=True)
class Entry:
    """One header. `kind` is the type flag; `pax` has the records of an extended header."""

    name: bytes
    kind: bytes = FILE
    size: int = 0
    mode: int = 0o644
    mtime_ns: int = 0
    link: bytes = b""
    pax: Mapping[bytes, bytes] = field(default_factory=dict[bytes, bytes])


def header(entry: Entry) -> bytes:
    """The blocks before an entry's content. Owners are 0; what ustar cannot say stands in a pax header before it."""
    seconds, fraction = divmod(entry.mtime_ns, 1_000_000_000)
    records: list[tuple[bytes, bytes]] = []
    if len(entry.name) > 100:
        records.append((b"path", entry.name))
    if len(entry.link) > 100:
        records.append((b"linkpath", entry.link))
    if records and not all(_is_utf8(value) for _, value in records):
        records.insert(0, (b"hdrcharset", b"BINARY"))
    if fraction or not 0 <= seconds < _MOST_PLAIN:
        sign, (whole, rest) = b"-" if seconds < 0 else b"", divmod(abs(entry.mtime_ns), 1_000_000_000)
        records.append((b"mtime", b"%b%d.%09d" % (sign, whole, rest)))
    if entry.size >= _MOST_PLAIN:
        records.append((b"size", b"%d" % entry.size))
    plain = _block(
        entry.name[:100],
        entry.kind,
        entry.size if entry.size < _MOST_PLAIN else 0,
        entry.mode,
        seconds if 0 <= seconds < _MOST_PLAIN else 0,
        entry.link[:100],
    )
    if not records:
        return plain
    body = b"".join(_record(key, value) for key, value in records)
    return _block(b"pax", _PAX, len(body), 0o644, 0, b"") + body + padding(len(body)) + plain


def padding(size: int) -> bytes:
    """What fills the last block after `size` bytes of content."""
    return bytes(-size % BLOCK)


def _block(name: bytes, kind: bytes, size: int, mode: int, mtime_s: int, link: bytes) -> bytes:
    begin = name.ljust(100, b"\0") + b"%07o\0%07o\0%07o\0%011o\0%011o\0" % (mode & 0o7777, 0, 0, size, mtime_s)
    end = kind + link.ljust(100, b"\0") + b"ustar\x0000"
    checksum = sum(begin) + 8 * 0x20 + sum(end)
    return (begin + b"%06o\0 " % checksum + end).ljust(BLOCK, b"\0")


def _record(key: bytes, value: bytes) -> bytes:
    length = len(key) + len(value) + 3
    total = length + len(str(length))
    if len(str(total)) > len(str(length)):
        total = length + len(str(total))
    return b"%d %b=%b\n" % (total, key, value)


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


class Sink(Protocol):
    """What a `Decoder` tells. For each entry: `begin`, then, with its bytes, `content`, then `end`."""

    def begin(self, entry: Entry) -> None: ...
    def content(self, data: bytes) -> None: ...
    def end(self) -> None: ...


class Decoder:
    """Takes an archive's bytes in any cuts. `ended` once its end marker was seen; what follows that is ignored."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._held = bytearray()
        self.ended = False
        self._steps = self._run()
        next(self._steps)

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            ProtocolError: This is no tar archive, or a damaged one.
        """
        if not self.ended:
            self._held += data
            self._steps.send(None)

    def _run(self) -> Generator[None, None, None]:
        pax: dict[bytes, bytes] = {}
        told = 0  # bytes of extended headers before this entry
        while True:
            block = yield from self._take(BLOCK)
            if not any(block):
                break
            kind, size = _kind(block), _number(block[124:136])
            if kind in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
                told += size
                if told > MAX_META:
                    raise ProtocolError(f"The archive has {told} bytes of extended headers for one entry.")
                body = yield from self._take(size + len(padding(size)))
                pax.update(_extended(kind, body[:size]))
                continue
            entry = _entry(block, kind, size, pax)
            pax, told = {}, 0
            extended = kind == SPARSE and block[482]
            while extended:
                extended = (yield from self._take(BLOCK))[504]
            self._sink.begin(entry)
            yield from self._content(entry.size)
            self._sink.end()
        self.ended = True
        self._held.clear()
        yield

    def _take(self, count: int) -> Generator[None, None, bytes]:
        while len(self._held) < count:
            yield
        taken = bytes(self._held[:count])
        del self._held[:count]
        return taken

    def _content(self, size: int) -> Generator[None, None, None]:
        left = size
        while left:
            if not self._held:
                yield
                continue
            piece = bytes(self._held[:left])
            del self._held[: len(piece)]
            left -= len(piece)
            self._sink.content(piece)
        yield from self._take(len(padding(size)))


def _kind(block: bytes) -> bytes:
    stated = _number(block[148:156])
    if stated != sum(block) - sum(block[148:156]) + 8 * 0x20:
        raise ProtocolError("This is no tar archive, or a damaged one: a header's checksum is wrong.")
    kind = block[156:157]
    return FILE if kind in (b"\0", b"7") else kind


def _entry(block: bytes, kind: bytes, size: int, pax: dict[bytes, bytes]) -> Entry:
    name, prefix = _text(block[:100]), _text(block[345:500])
    if prefix and block[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    if b"size" in pax:
        size = _decimal(pax[b"size"])
    mtime_ns = _nanoseconds(pax[b"mtime"]) if b"mtime" in pax else _number(block[136:148]) * 1_000_000_000
    return Entry(
        name=pax.get(b"path", name),
        kind=DIRECTORY if kind == FILE and name.endswith(b"/") and b"path" not in pax else kind,
        size=0 if kind in _EMPTY_KINDS else size,
        mode=_number(block[100:108]) & 0o7777,
        mtime_ns=mtime_ns,
        link=pax.get(b"linkpath", _text(block[157:257])),
        pax=pax,
    )


def _extended(kind: bytes, body: bytes) -> dict[bytes, bytes]:
    if kind == _PAX_GLOBAL:
        return {}
    if kind == _LONG_NAME:
        return {b"path": _text(body)}
    if kind == _LONG_LINK:
        return {b"linkpath": _text(body)}
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(body):
        stated, space, _ = body[at : at + 24].partition(b" ")
        end = at + _decimal(stated)
        key, equals, value = body[at + len(stated) + 1 : end].partition(b"=")
        if not space or end > len(body) or not equals or not value.endswith(b"\n"):
            raise ProtocolError("The archive has a damaged extended header.")
        records[key] = value[:-1]
        at = end
    return records


def _text(padded: bytes) -> bytes:
    return padded.partition(b"\0")[0]


def _number(digits: bytes) -> int:
    """Octal text, or GNU's base 256; never negative."""
    if digits[0] & 0x80:
        value = int.from_bytes(digits[1:], "big")
        return value if digits[0] == 0x80 else 0
    text = digits.strip(b" \0")
    if not text:
        return 0
    if text.strip(b"01234567"):
        raise ProtocolError("The archive has a header with a number that is none.")
    return int(text, 8)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise ProtocolError("The archive has an extended header with a number that is none.")
    return int(text)


def _nanoseconds(text: bytes) -> int:
    sign = -1 if text.startswith(b"-") else 1
    whole, _, fraction = text.removeprefix(b"-").partition(b".")
    return sign * (_decimal(whole) * 1_000_000_000 + _decimal(fraction[:9].ljust(9, b"0")))
