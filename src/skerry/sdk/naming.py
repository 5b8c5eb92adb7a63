"""What a person types for a sandbox or a snapshot. Pure."""

from collections.abc import Sequence

MOST_LISTED = 8
SHORTEST = 4  # characters of an id that may stand for it: less is a slip, or a variable that is not set


def beginning(word: str, kind: str) -> str | None:
    """The beginning of an id of this kind (`sbx`, `snap`) that a word may stand for; None: it can be none."""
    prefix = word if word.startswith(f"{kind}_") else f"{kind}_{word}"
    return prefix if len(kind) + 1 + SHORTEST <= len(prefix) <= 64 else None


def several(word: str, what: str, found: Sequence[tuple[str, str | None]]) -> str:
    """That a word means several things, each an id and a name."""
    listed = ", ".join(f"{id} ({name or 'no name'})" for id, name in found[:MOST_LISTED])
    more = ", …" if len(found) > MOST_LISTED else ""
    return f"{word!r} means several {what}: {listed}{more}. Give more of the id."
