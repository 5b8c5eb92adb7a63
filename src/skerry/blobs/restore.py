"""Getting an archive back: the manifest, then its entries into a directory of their own, content fetched ahead."""

import os
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from skerry.blobs.capture import Progress, Vaulted
from skerry.blobs.catalogue import Catalogue
from skerry.blobs.descent import open_tree
from skerry.blobs.filling import Filler, Run
from skerry.blobs.limits import LIMITS, Limits, damaged
from skerry.blobs.manifest import Entry, Kind, ManifestReader
from skerry.blobs.placing import TreePlacer
from skerry.blobs.root import Root, read_root
from skerry.blobs.segments import SegmentReader
from skerry.blobs.stat_cache import StatCacheWriter, cache_path
from skerry.model.errors import Invalid
from skerry.model.ids import ArchiveId

_AHEAD = 4096  # steps
_AHEAD_SEGMENTS = 24
_RUNS_A_STEP = 8
_TELL_BYTES = 1 << 18
_MORE = Entry(Kind.PIECES)
_EVER = (1 << 63) - 1
_CLOCK_REALTIME_COARSE = 5  # what the kernel stamps files with

Step = tuple[Entry, Sequence[Run]]  # an entry with the first of its data, or with Kind.PIECES more of it


def restore_tree(
    vaulted: Vaulted,
    into: Path,
    archive_id: ArchiveId,
    *,
    cache_name: str,
    progress: Progress,
    limits: Limits = LIMITS,
) -> Root:
    """Fill the empty directory `into` with an archive's tree, and remember its files in the stat cache.

    When it fails, what is there is worth nothing: the caller throws it away.

    Raises:
        NotFound: There is no such archive (`archive_missing`).
        Refused: It is damaged; the message says where.
        Unavailable: The store cannot be used.
        OSError: The files cannot be written.
    """
    root = read_root(vaulted.objects, vaulted.keys, archive_id)
    into_fd = open_tree(into)
    catalogue = Catalogue(vaulted.objects, vaulted.keys, vaulted.cache_dir / "indices")
    cache = StatCacheWriter(cache_path(vaulted.cache_dir, cache_name), vaulted.keys, trusted_before_ns=_EVER)
    reader = SegmentReader(vaulted.objects, vaulted.keys, catalogue)
    filler = Filler(cache, reader)
    placer = TreePlacer(into_fd, filler, limits)
    progress(0, root.size_bytes, 0)
    try:
        if next(into.iterdir(), None) is not None:
            raise Invalid(f"{into} is not empty.")
        catalogue.load(root.packs)
        with _no_umask():
            _fill(placer, reader, root, limits, progress)
        placer.finish(root.entries)
        _let_clock_pass(filler.latest_ctime_ns)
        cache.commit()
    finally:
        cache.discard()
        reader.stop()
        placer.close()
    progress(root.size_bytes, root.size_bytes, reader.fetched_bytes)
    return root


def _fill(placer: TreePlacer, reader: SegmentReader, root: Root, limits: Limits, progress: Progress) -> None:
    done = told = 0
    for entry, runs in _ahead(_entries(reader, root, limits), reader):
        placer.place(entry, runs)
        done += sum(run.chunk.spot.length for run in runs)
        if done - told >= _TELL_BYTES:
            progress(done, root.size_bytes, reader.fetched_bytes)
            told = done


def _entries(reader: SegmentReader, root: Root, limits: Limits) -> Iterator[Entry]:
    try:
        ids = [bytes.fromhex(one) for one in root.manifest]
    except ValueError:
        raise damaged("its root names chunks that are none") from None
    parser = ManifestReader(limits)
    for number, chunk_id in enumerate(ids):
        for following in ids[number + 1 : number + 3]:
            reader.expect(following)
        yield from parser.feed(reader.data(reader.expect(chunk_id)))
    parser.close()


def _ahead(entries: Iterator[Entry], reader: SegmentReader) -> Iterator[Step]:
    """All steps, while what later ones need is being fetched."""
    steps = _steps(entries, reader)
    window: deque[tuple[Step, int]] = deque()
    segments = 0
    exhausted = False
    while True:
        while not exhausted and len(window) < _AHEAD and segments < _AHEAD_SEGMENTS:
            begun = reader.begun
            step = next(steps, None)
            if step is None:
                exhausted = True
                break
            segments += reader.begun - begun
            window.append((step, reader.begun - begun))
        if not window:
            return
        step, begun = window.popleft()
        segments -= begun
        yield step


def _steps(entries: Iterator[Entry], reader: SegmentReader) -> Iterator[Step]:
    for entry in entries:
        pieces = entry.pieces
        if not pieces:
            yield entry, ()
        for at in range(0, len(pieces), _RUNS_A_STEP):
            runs = [_run(reader, piece) for piece in pieces[at : at + _RUNS_A_STEP]]
            yield entry if at == 0 else _MORE, runs


def _run(reader: SegmentReader, piece: tuple[int, int, bytes]) -> Run:
    hole, length, chunk_id = piece
    chunk = reader.expect(chunk_id)
    if chunk.spot.length != length:
        raise damaged(f"chunk {chunk_id.hex()[:16]} has not the length that the manifest tells")
    return Run(hole, chunk)


@contextmanager
def _no_umask() -> Generator[None]:
    """Files are made with the modes that they have to have. For the whole process, which makes no others meanwhile."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _let_clock_pass(ctime_ns: int) -> None:
    """Return when a write would get a change time of its own: until then the cache could not tell it."""
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= ctime_ns:
        time.sleep(0.002)
