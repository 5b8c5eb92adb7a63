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
