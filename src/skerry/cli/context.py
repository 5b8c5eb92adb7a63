"""Which sandbox a directory stands for: `.skerry` in it, or in the nearest directory above that has one.

The file names a sandbox and its server, never a key, and is used only where this user has written it with `skerry use`:
a file that came with somebody's repository is told about and left alone. It never decides where a key is sent.
"""

import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from skerry.cli import private
from skerry.cli.output import hint, printable
from skerry.model.errors import Invalid, SkerryError
from skerry.model.ids import is_id

NAME = ".skerry"
OWN = "contexts.json"  # directory → what `use` wrote there
MOST_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Context:
    """A sandbox at a server, for `directory` and all below."""

    directory: Path
    sandbox_id: str
    server: str


def current(start: Path | None = None) -> Context | None:
    """The context of a directory (of the working directory); None where there is none, or none of this user's own."""
    try:
        begin = (start or Path.cwd()).resolve()
    except OSError:  # the working directory has been removed
        return None
    for directory in (begin, *begin.parents):
        told = _read(directory)
        if told is None:
            continue
        if _own(directory) == [told.sandbox_id, told.server]:
            return told
        hint(
            f"skerry: {printable(str(directory / NAME))} was not written by `skerry use` of yours, and is not used."
            f" To take it over: cd there, and `skerry use {told.sandbox_id}`."
        )
        return None
    return None


def use(sandbox_id: str, server: str, directory: Path | None = None) -> Path:
    """Make a directory (the working directory) stand for a sandbox. The file's path. Safe to call twice.

    Raises:
        Invalid: There is something else of that name, such as a directory.
    """
    where = (directory or Path.cwd()).resolve()
    path = where / NAME
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise Invalid(f"{path} is no regular file, and is not replaced.")
    own = _owned()
    own[str(where)] = [sandbox_id, server]
    private.write(OWN, own)
    part = where / f"{NAME}.{os.getpid()}.part"
    try:
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps({"sandbox": sandbox_id, "server": server}) + "\n")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path


def forget(directory: Path | None = None) -> bool:
    """Take a directory's context away, where it is of this user's own. False: there was none."""
    where = (directory or Path.cwd()).resolve()
    own = _owned()
    if own.pop(str(where), None) is None:
        return False
    private.write(OWN, own)
    if _read(where) is not None:
        (where / NAME).unlink(missing_ok=True)
    return True


def _owned() -> dict[str, object]:
    """What `use` wrote where, without directories that are gone."""
    return {path: told for path, told in private.read(OWN).items() if (Path(path) / NAME).exists()}


def _own(directory: Path) -> object:
    try:
        return private.read(OWN).get(str(directory))
    except SkerryError as error:
        hint(f"skerry: {error.message}")
        return None


def _read(directory: Path) -> Context | None:
    """What the file in a directory says, if it is one: a link, a pipe, a directory or other text is none."""
    try:
        handle = os.open(directory / NAME, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        text = os.read(handle, MOST_BYTES)
    finally:
        os.close(handle)
    try:
        held: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(held, dict):
        return None
    told = cast(dict[str, object], held)
    sandbox_id, server = told.get("sandbox"), told.get("server")
    if not isinstance(sandbox_id, str) or not isinstance(server, str) or not is_id(sandbox_id, "sbx"):
        return None
    return Context(directory, sandbox_id, server)
