"""A trace of something that a part of the node holds, and whose it is; and those that directories show."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skerry.model.leak import LeakKind


@dataclass(frozen=True, slots=True)
class Trace:
    """`owner` is the sandbox, tree or line of trees that it is there for; `since` when it was made or last changed."""

    kind: LeakKind
    owner: str
    name: str
    since: float | None = None  # seconds since the epoch; None: it does not tell
    size_bytes: int | None = None


def entries(kind: LeakKind, directory: Path, suffix: str = "") -> list[Trace]:
    """The entries of a directory that are named after their owners, with `suffix` or without. Hidden ones are none."""
    return list(_entries(kind, directory, suffix)) if directory.is_dir() else []


def _entries(kind: LeakKind, directory: Path, suffix: str) -> Iterator[Trace]:
    for path in directory.iterdir():
        if path.name.startswith("."):
            continue
        try:
            since = path.lstat().st_mtime
        except FileNotFoundError:
            continue
        yield Trace(kind, path.name.removesuffix(suffix), str(path), since)
