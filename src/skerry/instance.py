"""One instance on this host, seen from outside: whether it runs, where, with which settings, and which key opens it.

Makes nothing.
"""

import fcntl
import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skerry.config import Config
from skerry.model.errors import Unavailable

PARTS = ("node", "api")
TROUBLE_BYTES = 4096
# struct flock: type, whence, start, length, pid
_FLOCK = "@hhqqi0q"


@dataclass(frozen=True, slots=True)
class Running:
    """What a server said of itself when it began to listen; `revision`: the installed one that it was started from."""

    pid: int
    url: str
    revision: str
    settings: Mapping[str, Any]


def pid_file(config: Config) -> Path:
    """Holds the supervisor's pid, and its lock: whoever holds the lock is the running server."""
    return config.run_dir / "skerry.pid"


def url_file(config: Config) -> Path:
    return config.run_dir / "api.url"


def key_file(config: Config) -> Path:
    return config.home / "key"


def log_file(config: Config) -> Path:
    return config.home / "log" / "serve.log"


def trouble_file(config: Config, part: str) -> Path:
    """Why a part (of PARTS) of the running server could not start the last time. Empty or absent: it could."""
    return config.run_dir / f"{part}.trouble"


def trouble(config: Config) -> str:
    """Why the running server does not work, as its parts tell it; empty where they have nothing to tell."""
    told: list[str] = []
    for part in PARTS:
        try:
            text = trouble_file(config, part).read_bytes()[:TROUBLE_BYTES].decode(errors="replace").strip()
        except OSError:
            continue
        text = "".join(c if c.isprintable() or c == "\n" else "?" for c in text)
        told += [f"The {part} cannot start: {text}"] if text else []
    return "\n".join(told)


def published_file(config: Config) -> Path:
    """What the running server says of itself (`Running`, as JSON). Root's: a mirror's address may hold a password."""
    return config.run_dir / "server.json"


def published(config: Config) -> Running | None:
    """What the last server of this instance said of itself. None: nothing, or nothing that this version can read.

    Whether that server still runs is told by `running_pid`.
    """
    try:
        told = json.loads(published_file(config).read_text())
        return Running(int(told["pid"]), str(told["url"]), str(told["revision"]), dict(told["settings"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def installed_revision(config: Config) -> str:
    """The revision that is installed, as the bootstrap script notes it; empty where it did not install."""
    try:
        return (config.home / "venv" / ".skerry-revision").read_text().strip()
    except OSError:
        return ""


def running_pid(config: Config) -> int | None:
    """The supervisor's pid, or None. Told by the kernel, of the lock that the supervisor holds on its pid file.

    So a reused pid is never taken for the server; and to ask takes no lock, which would be in a starting server's way.
    """
    try:
        handle = os.open(pid_file(config), os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unavailable(f"{pid_file(config)} cannot be read: {error.strerror}. Use sudo.") from error
    try:
        asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(handle, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(handle)


def url(config: Config) -> str:
    """Where the API listens.

    Raises:
        Unavailable: The server was never started here, or has been ended.
    """
    file = url_file(config)
    try:
        return file.read_text().strip()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unavailable(
            f"No server has been started from {config.home}. Start it: `skerry up` (or point SKERRY_HOME elsewhere)."
        ) from error
    except (OSError, ValueError) as error:
        raise Unavailable(f"{file} cannot be read: {error}. Use sudo, or set SKERRY_URL and SKERRY_API_KEY.") from error


def key(config: Config) -> str:
    """The bootstrap account's key. Raises Unavailable where there is none, or it cannot be read."""
    path = key_file(config)
    try:
        found = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Unavailable(f"{path} does not exist yet. Start the server once: `skerry up`.") from error
    except OSError as error:
        raise Unavailable(f"{path} is for root only. Use sudo, or set SKERRY_URL and SKERRY_API_KEY.") from error
    except ValueError:
        found = ""
    if not found or not found.isprintable() or " " in found:
        raise Unavailable(
            f"{path} holds no key. Remove it and start anew (`skerry down`, `skerry up`): that makes another one."
        )
    return found
