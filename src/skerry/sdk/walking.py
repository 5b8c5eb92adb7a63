"""Paths inside a sandbox, as entries of a listing tell them. Pure."""

import base64
import os
from collections.abc import Sequence
from fnmatch import fnmatchcase

from skerry.wire.files import FileEntry


def exact_path(directory: str, entry: FileEntry) -> str:
    """The path of an entry of a directory; bytes that are no UTF-8 as surrogates, which all methods take."""
    name = os.fsdecode(base64.b64decode(entry.name_base64)) if entry.name_base64 else entry.name
    return f"{directory.rstrip('/')}/{name}"


def matches(pattern: str, directory: str, path: str) -> bool:
    """Whether a path below a directory matches a pattern: of names, or with a slash in it, of paths below it.

    `*` stays within a name; `**` is any number of directories.
    """
    below = path.removeprefix(directory.rstrip("/") + "/").split("/")
    return _match(pattern.split("/"), below) if "/" in pattern else fnmatchcase(below[-1], pattern)


def _match(pattern: Sequence[str], parts: Sequence[str]) -> bool:
    if not pattern or not parts:
        return not parts and all(one == "**" for one in pattern)
    if pattern[0] == "**":
        return _match(pattern[1:], parts) or _match(pattern, parts[1:])
    return fnmatchcase(parts[0], pattern[0]) and _match(pattern[1:], parts[1:])
