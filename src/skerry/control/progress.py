"""How far what takes long has come, for whoever looks. Of this process alone, and no truth: the records have that."""

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    ARCHIVE = "archive"  # files go to the object store
    FETCH = "fetch"  # files come from it


@dataclass(frozen=True, slots=True)
class Progress:
    """Of one sandbox or snapshot. `total_bytes` is None until it is known."""

    phase: Phase
    done_bytes: int = 0
    total_bytes: int | None = None
