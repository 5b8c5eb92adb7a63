"""Getting an archive back: the manifest, then its entries into a directory of their own, content fetched ahead."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from skerry.blobs.capture import Progress, Vaulted
from skerry.blobs.catalogue import Catalogue
from skerry.blobs.descent import open_tree
from skerry.blobs.limits import LIMITS, Limits, damaged
from skerry.blobs.manifest import Entry, ManifestReader
from skerry.blobs.placing import TreePlacer
from skerry.blobs.root import Root, read_root
from skerry.blobs.segments import SegmentReader
from skerry.blobs.stat_cache import StatCacheWriter, cache_path
from skerry.model.errors import Invalid
from skerry.model.ids import ArchiveId

_AHEAD = 4096  # entries and pieces
_AHEAD_SEGMENTS = 24
_EVER = (1 << 63) - 1
_CLOCK_REALTIME_COARSE = 5  # what the kernel stamps files with

# An entry, then its pieces: what was asked for ahead.
Step = Entry | tuple[int, int, bytes]


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
    placer = TreePlacer(into_fd, cache, limits)
    reader = SegmentReader(vaulted.objects, vaulted.keys, catalogue)
    progress(0, root.size_bytes, 0)
    try:
        if next(into.iterdir(), None) is not None:
            raise Invalid(f"{into} is not empty.")
        catalogue.load(root.packs)
        _fill(placer, reader, _ahead(_steps(reader, root, limits), reader), root, progress)
        placer.finish(root.entries)
        _let_clock_pass(placer.latest_ctime_ns)
        cache.commit()
    finally:
        cache.discard()
        placer.close()
        reader.stop()
    progress(root.size_bytes, root.size_bytes, reader.fetched_bytes)
    return root


def _fill(placer: TreePlacer, reader: SegmentReader, steps: Iterator[Step], root: Root, progress: Progress) -> None:
    done = 0
    for step in steps:
        if isinstance(step, Entry):
            placer.place(step)
            continue
        hole, length, chunk_id = step
        data = reader.chunk(chunk_id)
        if len(data) != length:
            raise damaged(f"chunk {chunk_id.hex()[:16]} has not the length that the manifest tells")
        placer.write(hole, data, chunk_id)
        done += length
        progress(done, root.size_bytes, reader.fetched_bytes)


def _steps(reader: SegmentReader, root: Root, limits: Limits) -> Iterator[Step]:
    try:
        ids = [bytes.fromhex(one) for one in root.manifest]
    except ValueError:
        raise damaged("its root names chunks that are none") from None
    parser = ManifestReader(limits)
    for number, chunk_id in enumerate(ids):
        for following in ids[number + 1 : number + 3]:
            reader.expect(following)
        for entry in parser.feed(reader.chunk(chunk_id)):
            yield entry
            yield from entry.pieces
    parser.close()


def _ahead(steps: Iterator[Step], reader: SegmentReader) -> Iterator[Step]:
    """The same steps, while what later ones need is being fetched."""
    window: deque[tuple[Step, bool]] = deque()
    segments = 0
    exhausted = False
    while True:
        while not exhausted and len(window) < _AHEAD and segments < _AHEAD_SEGMENTS:
            step = next(steps, None)
            if step is None:
                exhausted = True
                break
            fetches = not isinstance(step, Entry) and reader.expect(step[2])
            segments += fetches
            window.append((step, fetches))
        if not window:
            return
        step, fetched = window.popleft()
        segments -= fetched
        yield step


def _let_clock_pass(ctime_ns: int) -> None:
    """Return when a write would get a change time of its own: until then the cache could not tell it."""
    while time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) <= ctime_ns:
        time.sleep(0.002)
