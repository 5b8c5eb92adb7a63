"""The root of an archive: what its manifest's chunks are, which packs it needs, and its totals. Written last, once."""

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from skerry.blobs.keys import VERSION, Keys
from skerry.blobs.limits import damaged
from skerry.blobs.objects import Objects, get_bounded
from skerry.blobs.packs import compress, decompress
from skerry.model.errors import NotFound, Refused

_MOST = 1 << 28


@dataclass(frozen=True, slots=True)
class Root:
    """`manifest` are the ids of its chunks, in hex; `skipped` counts what no archive holds, `dropped_xattrs` too."""

    manifest: list[str]
    packs: list[str]
    entries: int
    size_bytes: int
    skipped: int
    dropped_xattrs: int
    version: int = VERSION


def encode_root(keys: Keys, archive: str, root: Root) -> bytes:
    plain = json.dumps(asdict(root), separators=(",", ":")).encode()
    return keys.seal_root(struct.pack("<Q", len(plain)) + compress(plain), archive)


def root_key(vault_id: str, archive: str) -> str:
    return f"{vault_id}/archives/{archive}"


def read_root(objects: Objects, keys: Keys, archive: str) -> Root:
    """The root of an archive.

    Raises:
        NotFound: The vault has no such archive (`archive_missing`).
        Refused: It is damaged, or of a later version.
    """
    try:
        sealed = get_bounded(objects, root_key(keys.vault_id, archive), _MOST, f"the root of archive {archive}")
    except NotFound:
        raise NotFound(
            f"The object store has no archive {archive}. Where 'archive_url' was changed, copy there what was stored"
            " before.",
            code="archive_missing",
        ) from None
    what = f"the root of archive {archive}"
    opened = keys.open_root(sealed, archive)
    size = int.from_bytes(opened[:8], "little")
    if len(opened) < 8 or size > _MOST:
        raise damaged(f"{what} is cut off")
    try:
        told: dict[str, Any] = json.loads(decompress(opened[8:], size, what))
        if told["version"] != VERSION:
            raise Refused(
                f"Archive {archive} has format {told['version']}, and this version of Skerry reads {VERSION}."
                " Use the version that wrote it.",
                code="archive_version",
            )
        return Root(**told)
    except (ValueError, KeyError, TypeError):
        raise damaged(f"{what} does not say what it has to") from None
