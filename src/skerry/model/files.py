"""Files inside a sandbox, as they are told outside. Names may hold surrogates (`os.fsencode` gives the bytes back)."""

from dataclasses import dataclass
from enum import StrEnum


class FileType(StrEnum):
    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    CHAR = "char"
    BLOCK = "block"


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One directory entry. `mode` is the 12 permission bits; `target` a symlink's."""

    name: str
    path: str
    type: FileType
    size_bytes: int
    mode: int
    uid: int
    gid: int
    mtime_ns: int
    target: str | None = None


class ChangeKind(StrEnum):
    CREATE = "create"
    MODIFY = "modify"
    REMOVE = "remove"
    MOVE_FROM = "move_from"
    MOVE_TO = "move_to"
    OVERFLOW = "overflow"


@dataclass(frozen=True, slots=True)
class FileChange:
    kind: ChangeKind
    path: str


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What one packing or unpacking of a tree may handle: entries, and bytes of all its files together."""

    max_entries: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that was left out, by its name in the archive, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Archived:
    """What a packing or unpacking did. `size_bytes` is of the files' content; `skipped` names the first of all that
    `skipped_count` counts."""

    count: int
    size_bytes: int
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
