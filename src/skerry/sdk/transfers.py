"""What transfers of many files report: how much came over, and what was left out and why."""

from collections.abc import Callable
from dataclasses import dataclass, field

Progress = Callable[[int, int | None], object]
"""Called as a transfer goes on, with the bytes done so far and the bytes of all (None: not known)."""

MAX_TOLD = 100


@dataclass(frozen=True, slots=True)
class Skipped:
    """An entry that was left out: its path below the directory, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """`count` entries (files, directories, links) are there, with `size_bytes` of content.

    `skipped` names the first of the `skipped_count` others.
    """

    count: int
    size_bytes: int
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0

    def __str__(self) -> str:
        left_out = f", {self.skipped_count} left out" if self.skipped_count else ""
        return f"{self.count} entries, {self.size_bytes} bytes{left_out}"


@dataclass(slots=True)
class Tally:
    """A transfer as it grows. Of what is left out the first are kept, and all are counted."""

    count: int = 0
    size_bytes: int = 0
    skipped: list[Skipped] = field(default_factory=list[Skipped])
    skipped_count: int = 0

    def leave_out(self, path: str, reason: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < MAX_TOLD:
            self.skipped.append(Skipped(path, reason))

    def total(self) -> Transfer:
        return Transfer(self.count, self.size_bytes, tuple(self.skipped), self.skipped_count)
