"""The form of a pack: segments of chunks, each compressed and sealed, and the index that says what lies where.

A reader trusts nothing here before it was opened, and checks every length even then.
"""

import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass

import zstandard

from skerry.blobs.keys import ID_BYTES, OVERHEAD, Data, Keys
from skerry.blobs.limits import damaged

MAGIC = b"SKERPK\x01\x00"
SEGMENT_BYTES = 1 << 20  # of chunks, before compression; the last chunk may reach beyond
PACK_SEGMENTS = 16
CHUNK_MOST = 1 << 20
SEGMENT_MOST = SEGMENT_BYTES + CHUNK_MOST
LEVEL = 1

_INDEX = struct.Struct("<QI")  # size of the pack, number of segments
_SEGMENT = struct.Struct("<QIII")  # offset, stored bytes, plain bytes, number of chunks
_CHUNK = struct.Struct(f"<{ID_BYTES}sI")  # id, length
INDEX_MOST = 1 << 28
_SEGMENTS_MOST = 4096

_codecs = threading.local()  # a zstd context serves one thread at a time


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment of a pack. Its chunks lie in it one after the other."""

    offset: int
    stored_bytes: int
    plain_bytes: int
    chunks: Sequence[tuple[bytes, int]]  # id, length


@dataclass(frozen=True, slots=True)
class Index:
    """What a pack holds."""

    size_bytes: int
    segments: Sequence[Segment]


def compress(data: Data) -> bytes:
    codec: zstandard.ZstdCompressor | None = getattr(_codecs, "compressor", None)
    if codec is None:
        codec = _codecs.compressor = zstandard.ZstdCompressor(level=LEVEL)
    return codec.compress(data)


def decompress(data: Data, size: int, what: str) -> bytes:
    """`data` with `size` bytes in it, no more and no fewer. Raises Refused."""
    codec: zstandard.ZstdDecompressor | None = getattr(_codecs, "decompressor", None)
    if codec is None:
        codec = _codecs.decompressor = zstandard.ZstdDecompressor()
    try:
        # The frame's own word on its size decides what is allocated: it is checked first.
        if zstandard.frame_content_size(data) != size:
            raise damaged(f"{what} has not the size that its index tells")
        return codec.decompress(data) if size else b""
    except zstandard.ZstdError as error:
        raise damaged(f"{what} does not unpack ({error})") from None


def encode_segment(keys: Keys, plain: Data, pack: str, number: int) -> bytes:
    return keys.seal_segment(compress(plain), pack, number)


def decode_segment(keys: Keys, sealed: Data, pack: str, number: int, plain_bytes: int) -> bytes:
    return decompress(keys.open_segment(sealed, pack, number), plain_bytes, f"pack {pack} segment {number}")


def encode_index(keys: Keys, index: Index, pack: str) -> bytes:
    parts = [_INDEX.pack(index.size_bytes, len(index.segments))]
    for segment in index.segments:
        parts.append(_SEGMENT.pack(segment.offset, segment.stored_bytes, segment.plain_bytes, len(segment.chunks)))
        parts += [_CHUNK.pack(*chunk) for chunk in segment.chunks]
    plain = b"".join(parts)
    return keys.seal_index(struct.pack("<Q", len(plain)) + compress(plain), pack)


def decode_index(keys: Keys, sealed: Data, pack: str) -> Index:
    """Raises Refused where it is damaged."""
    what = f"the index of pack {pack}"
    opened = memoryview(keys.open_index(sealed, pack))
    try:
        (size,) = struct.unpack_from("<Q", opened)
        if size > INDEX_MOST:
            raise damaged(f"{what} is larger than any")
        return _parse_index(decompress(opened[8:], size, what), what)
    except struct.error:
        raise damaged(f"{what} is cut off") from None


def _parse_index(plain: bytes, what: str) -> Index:
    size_bytes, count = _INDEX.unpack_from(plain)
    at = _INDEX.size
    segments: list[Segment] = []
    if count > _SEGMENTS_MOST:
        raise damaged(f"{what} contradicts itself")
    for _ in range(count):
        offset, stored, length, chunks = _SEGMENT.unpack_from(plain, at)
        at += _SEGMENT.size
        end = at + chunks * _CHUNK.size
        found = list(_CHUNK.iter_unpack(plain[at:end])) if end <= len(plain) else []
        at = end
        if (
            len(found) != chunks
            or sum(one[1] for one in found) != length
            or length > SEGMENT_MOST
            or offset + stored > size_bytes
            or stored < OVERHEAD
        ):
            raise damaged(f"{what} contradicts itself")
        segments.append(Segment(offset, stored, length, found))
    return Index(size_bytes, segments)
