"""WebSockets to the server, for both halves of the client; and what a failed or closed one means, as our own errors.

The library is imported when the first one is opened: `import skerry` does without it.
"""

import socket
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from skerry.model.errors import Invalid, ProtocolError, SandboxGone, SkerryError, Unavailable
from skerry.sdk.errors import Unreachable, error_from
from skerry.sdk.settings import is_loopback

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection as AsyncWebSocket
    from websockets.sync.client import ClientConnection as WebSocket

CONNECT_S = 10.0
CLOSE_S = 2.0
MESSAGE_BYTES = 16 << 20  # from the server
ENDED, SANDBOX_GONE, POLICY, TOO_LARGE = 1000, 4410, 1008, 1009
# A server that is gone without a word is noticed by the kernel, two minutes later at most.
_PROBES = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


def connect_async(url: str, headers: Mapping[str, str]) -> "AbstractAsyncContextManager[AsyncWebSocket]":
    """Open one when entered, close it when left. `url` is http or https."""
    from websockets.asyncio.client import connect

    return connect(_address(url), additional_headers=headers, **_options(url))


def connect_sync(url: str, headers: Mapping[str, str]) -> "AbstractContextManager[WebSocket]":
    """As `connect_async`, blocking."""
    from websockets.sync.client import connect

    return connect(_address(url), additional_headers=headers, legacy=False, **_options(url))


def keep_alive(connection: "AsyncWebSocket | WebSocket") -> None:
    """Have the kernel notice a server that is gone."""
    asynchronous = hasattr(connection, "transport")
    peer: Any = connection.transport.get_extra_info("socket") if asynchronous else connection.socket  # type: ignore
    if peer is None or peer.family == socket.AF_UNIX:
        return
    with suppress(OSError):  # closed already: whoever reads finds out why
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


def refused(url: str, error: Exception) -> SkerryError:
    """Why one could not be opened: what the server said, or Unreachable."""
    from websockets.exceptions import InvalidStatus

    if isinstance(error, InvalidStatus):
        answer = error.response
        failure = error_from(answer.status_code, bytes(answer.body or b""), answer.headers.get("Retry-After"))
    else:
        failure = Unreachable(f"No WebSocket to the server at {url} ({error or type(error).__name__}). Is it running?")
    failure.__cause__ = error
    return failure


def broken(code: int | None, said: Mapping[str, Any] | None, reason: str) -> SkerryError:
    """What a close means that is not the command's end. An `Unavailable` may be taken up again."""
    message = str((said or {}).get("message") or reason or "The server closed the connection.")
    if code == SANDBOX_GONE:
        return SandboxGone(message)
    if code in (POLICY, TOO_LARGE):
        return Invalid(message, code=str((said or {}).get("code") or "invalid"))
    if code == ENDED:
        return ProtocolError("The server ended the connection before the command's end.")
    return Unavailable(message)


def _address(url: str) -> str:
    return url.replace("http", "ws", 1)


def _options(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {
        "proxy": None if is_loopback(f"{parts.scheme}://{parts.netloc}") else True,
        "compression": None,  # a keystroke gains nothing by it
        "user_agent_header": None,
        "open_timeout": CONNECT_S,
        "close_timeout": CLOSE_S,
        # Pongs wait behind output and input that wait: no sign of death.
        "ping_interval": None,
        "max_size": MESSAGE_BYTES,
        "max_queue": 16,
    }
