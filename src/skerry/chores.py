"""What the supervisor does beside keeping its children alive: tells systemd how the server is, bounds the log file.

Each is done in a moment. Nothing here decides anything about sandboxes.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

from skerry import instance, logs
from skerry.config import Config

LOOK_S = 0.2  # between looks at a server that is starting
LOG_S = 10.0  # between looks at the log file
_READY_S = 2.0
_MIB = 1 << 20


class ServiceManager:
    """Whoever started us with NOTIFY_SOCKET (systemd's `Type=notify`); without it, nobody."""

    def __init__(self) -> None:
        # Taken out of the environment: crun and runc would hand the socket on into every sandbox.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")

    @property
    def waits(self) -> bool:
        return self._address != ""

    def tell(self, *words: str) -> None:
        """Send assignments such as `READY=1`. One that does not listen any more: nothing happens."""
        if not self._address:
            return
        # A leading @ stands for the NUL byte of an abstract address.
        address = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.sendto("\n".join(words).encode(), address)


def chores(config: Config, manager: ServiceManager) -> Callable[[], float]:
    """The supervisor's chore: until the server is ready, look whether it is; from then on, mind the log file."""
    told = not manager.waits  # nobody to tell

    def do() -> float:
        nonlocal told
        if not told and is_ready(config):
            manager.tell("READY=1", f"STATUS=Listening at {instance.url(config)}")
            told = True
        with suppress(OSError):  # a full disk: the next look may find room
            logs.turn_over(instance.log_file(config), config.log_mb * _MIB)
        return LOG_S if told else LOOK_S

    return do


def is_ready(config: Config) -> bool:
    """Whether /readyz says so."""
    where = urlsplit(instance.url(config))
    connection = HTTPConnection(where.hostname or "127.0.0.1", where.port, timeout=_READY_S)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()
