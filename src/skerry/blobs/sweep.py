"""Removing from a vault what no archive needs any more.

A pack goes when no root that stays names it; packs of which little is needed stay whole, because roots name packs and
are never rewritten. What is young stays, needed or not: an archive that is being made, here or on another host, is
not on record yet.
"""

import time
from collections.abc import Collection

from skerry.blobs.capture import Vaulted
from skerry.blobs.files import FileObjects
from skerry.blobs.root import read_root
from skerry.model.capture import Blob, Swept
from skerry.model.errors import NotFound, Refused
from skerry.model.ids import ArchiveId

_KINDS = ("archives", "indices", "packs")  # in this order: a pack never goes before what names it


def sweep_vault(vaulted: Vaulted, keep: Collection[ArchiveId], *, older_than_s: float, dry: bool) -> Swept:
    """Remove what is older and not needed by `keep`, nor by a young archive. `dry`: only count.

    `stored_bytes` and `archives` tell what there was before.

    Raises:
        Refused: The root of an archive in `keep` is damaged: what it needs is not known, so nothing was removed.
        Unavailable: The store cannot be used.
    """
    objects, vault_id = vaulted.objects, vaulted.keys.vault_id
    if isinstance(objects, FileObjects) and not dry:
        objects.tidy()
    before = time.time() - older_than_s
    # Roots are listed last: one that is written meanwhile needs packs that are young, or has just been read.
    found = {kind: _listed(vaulted, kind) for kind in reversed(_KINDS)}
    staying = {name for name, blob in found["archives"].items() if name in keep or not _is_older(blob, before)}
    needed = _needed(vaulted, staying, set(keep))
    doomed = [blob for name, blob in found["archives"].items() if name not in staying]
    for kind in _KINDS[1:]:
        doomed += [blob for name, blob in found[kind].items() if name not in needed and _is_older(blob, before)]
    if not dry:
        for blob in doomed:
            objects.delete(blob.key)
    everything = [blob for blobs in found.values() for blob in blobs.values()]
    return Swept(
        stored_bytes=sum(blob.size_bytes for blob in everything),
        archives=sum(1 for blob in everything if blob.key.startswith(f"{vault_id}/archives/")),
        freed_bytes=sum(blob.size_bytes for blob in doomed),
        freed_objects=len(doomed),
    )


def _needed(vaulted: Vaulted, staying: Collection[str], keep: set[ArchiveId]) -> set[str]:
    packs: set[str] = set()
    for name in staying:
        try:
            packs.update(read_root(vaulted.objects, vaulted.keys, name).packs)
        except (Refused, NotFound):
            if name in keep:
                raise
            # A young one that nobody asked for and that opens nothing: broken, or another key's.
    return packs


def _listed(vaulted: Vaulted, kind: str) -> dict[str, Blob]:
    prefix = f"{vaulted.keys.vault_id}/{kind}/"
    return {blob.key.removeprefix(prefix): blob for blob in vaulted.objects.list(prefix)}


def _is_older(blob: Blob, before: float) -> bool:
    return blob.modified_at.timestamp() <= before
