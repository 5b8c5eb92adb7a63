"""The content of one file as pieces: runs of data, cut where their content says, with the holes between them.

Holes are asked of the file system and never read. The file is on disk and does not change.
"""

import errno
import os
from collections.abc import Iterator

from pyfastcdc import FastCDC

from skerry.blobs.packs import CHUNK_MOST
from skerry.model.errors import Unavailable

WHOLE_BYTES = 1 << 18  # a run up to here is one chunk
_WINDOW = 1 << 22


def new_cutter(seed: int) -> FastCDC:
    return FastCDC(1 << 18, min_size=1 << 16, max_size=CHUNK_MOST, seed=seed)


def pieces(fd: int, size: int, cutter: FastCDC) -> Iterator[tuple[int, bytes | memoryview]]:
    """Each run of data with the length of the hole before it.

    Raises:
        OSError: It cannot be read.
        Unavailable: It became shorter meanwhile.
    """
    end = 0
    for start, stop in _runs(fd, size):
        hole = start - end
        for data in _cut(fd, start, stop, cutter):
            yield hole, data
            hole = 0
        end = stop


def _runs(fd: int, size: int) -> Iterator[tuple[int, int]]:
    at = 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole from here on
                return
            raise
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < at:
            yield start, at


def _cut(fd: int, start: int, stop: int, cutter: FastCDC) -> Iterator[bytes | memoryview]:
    if stop - start <= WHOLE_BYTES:
        yield _read(fd, start, stop - start)
        return
    rest = b""
    while start < stop:
        data = rest + _read(fd, start, min(_WINDOW, stop - start))
        start += len(data) - len(rest)
        rest = b""
        chunks = list(cutter.cut_buf(data))
        if start < stop:
            rest = bytes(chunks.pop().data)  # the end of the window is no cut
        for chunk in chunks:
            yield chunk.data


def _read(fd: int, start: int, length: int) -> bytes:
    data = os.pread(fd, length, start)
    while len(data) < length:
        more = os.pread(fd, length - len(data), start + len(data))
        if not more:
            raise Unavailable("A file became shorter while it was archived; its tree has to be left alone meanwhile.")
        data += more
    return data
