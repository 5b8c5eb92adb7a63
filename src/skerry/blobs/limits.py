"""What an archive holds at most. A tree beyond it is refused with the limit's name, and stays where it is."""

import os
from dataclasses import dataclass, replace

from skerry.model.errors import Refused


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the format's readers and writers. Memory is bounded by them, not by what a sandbox makes."""

    entries: int = 4_000_000  # files, directories and links
    depth: int = 20_000  # directories within each other
    xattr_bytes: int = 1 << 20  # of one entry
    file_pieces: int = 4_000_000  # chunks of one file; runs of data between holes begin new ones
    manifest_bytes: int = 2 << 30
    tree_bytes: int = 1 << 50  # of files' data; at most what the tree's file system could hold, see `within`
    known_chunks: int = 4_000_000  # of the vault, that are looked for; what lies beyond is stored again


LIMITS = Limits()


def within(limits: Limits, tree_fd: int) -> Limits:
    """The limits of a tree there is, which no file system of that size would take back if it had more.

    Files may share their blocks, at no charge: ten thousand names for one file are read ten thousand times.
    """
    here = os.fstatvfs(tree_fd)
    return replace(limits, tree_bytes=min(limits.tree_bytes, here.f_blocks * here.f_frsize))


def over(limit: str, most: int, where: str = "") -> Refused:
    at = f", at {where}" if where else ""
    return Refused(
        f"The files are beyond what an archive holds: {limit} is {most:,}{at}. They stay on the node; make it fewer.",
        code="archive_limit",
    )


def damaged(what: str) -> Refused:
    return Refused(
        f"The archive is damaged: {what}. Nothing of it was restored; other archives may still be whole.",
        code="archive_damaged",
    )
