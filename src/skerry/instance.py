"""One instance on this host, seen from outside: whether it runs, where, and which key opens it. Makes nothing."""

import fcntl
import os
from pathlib import Path

from skerry.config import Config
from skerry.model.errors import Unavailable


def pid_file(config: Config) -> Path:
    """Holds the supervisor's pid, and its lock: whoever holds the lock is the running server."""
    return config.run_dir / "skerry.pid"


def url_file(config: Config) -> Path:
    return config.run_dir / "api.url"


def key_file(config: Config) -> Path:
    return config.home / "key"


def log_file(config: Config) -> Path:
    return config.home / "log" / "serve.log"


def trouble_file(config: Config) -> Path:
    """Why the node of the running server could not start, where it could not."""
    return config.run_dir / "node.trouble"


def revision_file(config: Config) -> Path:
    """The revision that the running server was started from."""
    return config.run_dir / "revision"


def installed_revision(config: Config) -> str:
    """The revision that is installed, as the bootstrap script notes it; empty where it did not install."""
    try:
        return (config.home / "venv" / ".skerry-revision").read_text().strip()
    except OSError:
        return ""


def running_pid(config: Config) -> int | None:
    """The supervisor's pid, or None. Told by the lock, so that a reused pid is never taken for the server."""
    try:
        handle = os.open(pid_file(config), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(os.read(handle, 32) or b"0") or None
    else:
        return None
    finally:
        os.close(handle)


def url(config: Config) -> str:
    """Where the API listens.

    Raises:
        Unavailable: The server was never started here.
    """
    try:
        return url_file(config).read_text().strip()
    except OSError as error:
        raise Unavailable(
            f"No server has been started from {config.home}. Start it: `skerry up` (or point SKERRY_HOME elsewhere)."
        ) from error


def key(config: Config) -> str:
    """The bootstrap account's key. Raises Unavailable where it cannot be read."""
    path = key_file(config)
    try:
        return path.read_text().strip()
    except FileNotFoundError as error:
        raise Unavailable(f"{path} does not exist yet. Start the server once: `skerry up`.") from error
    except PermissionError as error:
        raise Unavailable(f"{path} is for root only. Use sudo, or set SKERRY_URL and SKERRY_API_KEY.") from error
