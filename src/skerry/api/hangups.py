"""Clients that vanish while nobody reads from them: noticed, and what was done for them given up."""

import asyncio
import socket
from asyncio.transports import BaseTransport
from collections.abc import Coroutine
from select import POLLERR, POLLHUP, POLLNVAL, POLLRDHUP, poll
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

T = TypeVar("T")

HUNG_UP = "skerry.hung_up"  # in a request's scope: an Event, set when its connection has ended
# The kernel asks a peer that is silent, or that nothing is read from.
_PROBES = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))


def stay_in_touch(transport: BaseTransport) -> None:
    """Have the kernel end a connection whose other end is gone without a word, or forgot it."""
    peer: socket.socket = transport.get_extra_info("socket")
    if peer.family != socket.AF_UNIX:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _PROBES:
            peer.setsockopt(socket.IPPROTO_TCP, option, value)


async def while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives; it is cancelled when the client leaves before.

    For what reads the body itself and may wait long in between: meanwhile nothing else would notice.

    Raises:
        ClientDisconnect: The client has left.
    """
    hung_up: asyncio.Event | None = request.scope.get(HUNG_UP)
    if hung_up is None:
        return await work
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(hung_up.wait())
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def has_hung_up(peer: socket.socket) -> bool:
    """Whether the other end has closed or is gone, seen without reading what may still lie before its end.

    An end behind more than the kernel takes without being read is seen when the other kernel has given up: in minutes.
    """
    polled = poll()
    polled.register(peer, POLLRDHUP)
    return any(seen & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL) for _, seen in polled.poll(0))
