"""What an archive holds at most. A tree beyond it is refused with the limit's name, and stays where it is."""

from dataclasses import dataclass

from skerry.model.errors import Refused


@dataclass(frozen=True, slots=True)
class Limits:
    """Every bound of the format's readers and writers. Memory is bounded by them, not by what a sandbox makes."""

    entries: int = 4_000_000  # files, directories and links
    depth: int = 20_000  # directories within each other
    xattr_bytes: int = 1 << 20  # of one entry
    file_pieces: int = 4_000_000  # chunks of one file; runs of data between holes begin new ones
    manifest_bytes: int = 2 << 30
    known_chunks: int = 4_000_000  # of the vault, that are looked for; what lies beyond is stored again


LIMITS = Limits()


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
