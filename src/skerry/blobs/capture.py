"""Making an archive of a tree: read, send, read back, and only then write the root that makes it one."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from skerry.blobs import stat_cache
from skerry.blobs.catalogue import Catalogue, listed
from skerry.blobs.descent import open_tree
from skerry.blobs.keys import Keys
from skerry.blobs.limits import LIMITS, Limits
from skerry.blobs.manifest import ManifestWriter
from skerry.blobs.objects import Objects
from skerry.blobs.reading import Tools, TreeReader
from skerry.blobs.root import Root, encode_root, root_key
from skerry.blobs.stat_cache import RACY_NS, StatCacheWriter, cache_path
from skerry.blobs.writer import ChunkWriter, put_verified
from skerry.model.capture import Archive
from skerry.model.errors import Unavailable
from skerry.model.ids import ArchiveId

Progress = Callable[[int, int | None, int], None]  # bytes of files done, of all or None, bytes sent or received


@dataclass(frozen=True, slots=True)
class Vaulted:
    """A vault in its object store, and where this host remembers what is in it."""

    objects: Objects
    keys: Keys
    cache_dir: Path


def archive_tree(
    vaulted: Vaulted,
    tree: Path,
    archive_id: ArchiveId,
    *,
    captured_at_ns: int,
    cache_name: str,
    progress: Progress,
    limits: Limits = LIMITS,
) -> Archive:
    """Put a tree that does not change into the vault.

    Raises:
        Refused: The tree is beyond a limit, which the message names.
        Unavailable: The store cannot be used, or lost something meanwhile.
        OSError: The tree cannot be read.
    """
    cache_file = cache_path(vaulted.cache_dir, cache_name)
    seen = stat_cache.load(cache_file, vaulted.keys)
    catalogue = Catalogue(vaulted.objects, vaulted.keys, vaulted.cache_dir / "indices")
    catalogue.load_all(limits)
    writer = ChunkWriter(vaulted.objects, vaulted.keys, catalogue)
    seeing = StatCacheWriter(cache_file, vaulted.keys, trusted_before_ns=min(captured_at_ns, time.time_ns()) - RACY_NS)
    done = 0

    def moved(size: int) -> None:
        nonlocal done
        done += size
        progress(done, None, writer.sent_bytes)

    try:
        reader = TreeReader(open_tree(tree), Tools(writer, seen, seeing, vaulted.keys.cut_seed, limits, moved))
        root = _send(reader, writer, catalogue, ManifestWriter(writer, vaulted.keys.cut_seed, limits))
        stored = writer.sent_bytes + _write_root(vaulted, archive_id, root)
        seeing.commit()
    finally:
        seeing.discard()
        writer.stop()
    progress(root.size_bytes, root.size_bytes, stored)
    return Archive(archive_id, root.size_bytes, stored, root.entries, root.skipped)


def _send(reader: TreeReader, writer: ChunkWriter, catalogue: Catalogue, manifest: ManifestWriter) -> Root:
    """Have all of the tree in the vault, read back. Returns the root that would make it an archive."""
    for record in reader.records():
        manifest.add(record)
    manifest.close()
    writer.flush()
    totals = reader.totals
    return Root(
        manifest=[chunk.hex() for chunk in manifest.ids],
        packs=sorted(catalogue.packs[number] for number in writer.used),
        entries=totals.entries,
        size_bytes=totals.size_bytes,
        skipped=totals.skipped,
        dropped_xattrs=totals.dropped_xattrs,
    )


def _write_root(vaulted: Vaulted, archive_id: ArchiveId, root: Root) -> int:
    vault_id = vaulted.keys.vault_id
    lost = set(root.packs) - listed(vaulted.objects, vault_id).keys()
    if lost:
        raise Unavailable(f"The object store lost {len(lost)} packs while the archive was made; it is made again.")
    sealed = encode_root(vaulted.keys, archive_id, root)
    put_verified(vaulted.objects, root_key(vault_id, archive_id), sealed)
    return len(sealed)
