"""Small files that only this user may read or write: the login, and which context files are this user's own.

Knows nothing of what is in them.
"""

import json
import os
import secrets
import stat
from pathlib import Path
from typing import Any, cast

from skerry.model.errors import Refused

CHUNK_BYTES = 1 << 20


def directory() -> Path:
    """`$XDG_CONFIG_HOME/skerry`, else `~/.config/skerry`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "skerry"


def read(name: str) -> dict[str, Any]:
    """The JSON object in one of these files; empty where there is none.

    Raises:
        Refused: It is not this user's alone, or not JSON.
    """
    path = directory() / name
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}.") from error
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o077:
            raise Refused(f"{path} may be read or written by others than you: chmod 600 it, or log in again.")
        text = b"".join(iter(lambda: os.read(handle, CHUNK_BYTES), b""))
    finally:
        os.close(handle)
    try:
        held: object = json.loads(text)
    except ValueError:
        held = None
    if not isinstance(held, dict):
        raise Refused(f"{path} is damaged: remove it, and log in again.")
    return cast(dict[str, Any], held)


def write(name: str, held: dict[str, Any]) -> Path:
    """Replace one of these files, whole or not at all. Its path."""
    home = directory()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = home / name
    part = path.with_name(f".{name}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(held, file, indent=1)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return path
