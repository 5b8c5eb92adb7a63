"""What a sandbox's files begin with, and what an object store keeps of them."""

from dataclasses import dataclass, field
from datetime import datetime

from skerry.model.ids import ArchiveId, TreeId, VaultId


@dataclass(frozen=True, slots=True)
class Vault:
    """Where one account's archives lie in the object store, and what opens them. Accounts share nothing in it."""

    id: VaultId
    key: bytes = field(repr=False)  # 32 bytes


@dataclass(frozen=True, slots=True)
class Archive:
    """A tree in the object store, whole and verified. `id` names it within its vault."""

    id: ArchiveId
    size_bytes: int  # of the files: what a copy of them would take
    stored_bytes: int  # what this archive added to the vault; the rest was there
    entries: int
    skipped: int  # sockets, FIFOs and devices, which no archive holds


@dataclass(frozen=True, slots=True)
class Moved:
    """How far an archive or a fetch has come. The last one of an archive carries what was made.

    `total_bytes` is None until it is known. `sent_bytes` crossed to or from the object store.
    """

    done_bytes: int
    total_bytes: int | None = None
    sent_bytes: int = 0
    archive: Archive | None = None


@dataclass(frozen=True, slots=True)
class Blob:
    """One object of an object store, as a listing tells it."""

    key: str
    size_bytes: int
    modified_at: datetime


@dataclass(frozen=True, slots=True)
class Held:
    """A tree that a provider holds: the workspace of a sandbox, or a captured one."""

    id: TreeId
    created_at: datetime
    size_bytes: int | None = None  # None where counting would take a walk


@dataclass(frozen=True, slots=True)
class Swept:
    """What a vault holds, and what of it no archive that is to be kept needs."""

    stored_bytes: int
    archives: int
    freed_bytes: int
    freed_objects: int


@dataclass(frozen=True, slots=True)
class Capture:
    """What a sandbox's files begin with: `tree`, where the provider holds it, else `archive`, fetched as `tree`.

    With neither the sandbox begins empty. A sandbox that comes back begins with its own tree.
    """

    tree: TreeId | None = None
    archive: Archive | None = None


EMPTY = Capture()
