"""Starts the sandboxes' name server as a child process and starts it again when it ends. Reads no DNS message."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from ipaddress import IPv4Address, ip_address
from pathlib import Path

import structlog

from skerry.model.errors import Invalid, Refused

_PORT = 53
_PROGRAM = Path(__file__).with_name("resolver.py")
_START_S = 15.0
_END_S = 3.0
_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 10.0
_STEADY_S = 60.0

_log = structlog.get_logger()


def parse_servers(text: str) -> tuple[str, ...]:
    """The setting `dns`. Raises Invalid when something in it is no address."""
    found: list[str] = []
    for item in filter(None, (part.strip() for part in text.split(","))):
        try:
            found.append(str(ip_address(item)))
        except ValueError as error:
            raise Invalid(f"dns: '{item}' is not an IP address.", field="dns") from error
    return tuple(found)


class NameServer:
    """The name server on the gateway's address, UDP and TCP port 53. The sockets are ours: they outlive the child."""

    def __init__(self, address: IPv4Address, servers: tuple[str, ...]) -> None:
        self._address = str(address)
        self._servers = servers
        self._sockets: list[socket.socket] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen and serve; returns once it answers.

        Raises:
            Refused: The port is taken, or the child does not start.
        """
        try:
            for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
                sock = socket.socket(socket.AF_INET, kind)
                self._sockets.append(sock)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(kind == socket.SOCK_STREAM))
                sock.bind((self._address, _PORT))
            self._sockets[1].listen(256)
            await self._start()
        except (OSError, TimeoutError) as error:
            await self.close()
            raise Refused(
                f"The name server for sandboxes could not listen on {self._address} port 53: {error}. "
                "Another program has the port on all addresses (a DNS server?): let it listen on addresses of its own."
            ) from error
        self._keeper = asyncio.create_task(self._keep())

    async def close(self) -> None:
        """Stop serving and give the port back. Safe to call twice."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await asyncio.to_thread(self._end_child)
        while self._sockets:
            self._sockets.pop().close()

    @property
    def pid(self) -> int:
        """The child's process id; 0 when there is none."""
        return self._child.pid if self._child is not None else 0

    async def _start(self) -> None:
        udp, tcp = (sock.fileno() for sock in self._sockets)
        command = [sys.executable, "-I", str(_PROGRAM), f"--udp-fd={udp}", f"--tcp-fd={tcp}"]
        command += [f"--address={self._address}", f"--servers={','.join(self._servers)}"]
        self._child = await asyncio.to_thread(
            subprocess.Popen,
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(udp, tcp),
            env={},
            cwd="/",
        )
        if await asyncio.wait_for(self._says(), _START_S) != b"ready\n":
            raise OSError("the resolver ended at once")

    async def _says(self) -> bytes:
        """What the child says next; empty when it has ended. Read without waiting: it may be in hostile hands."""
        assert self._child is not None and self._child.stdout is not None
        stream, loop = self._child.stdout, asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(stream, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(stream)
        return os.read(stream.fileno(), 64)

    async def _keep(self) -> None:
        """Replace the child when it ends. It has nothing to say after `ready`: if it does, it is replaced as well."""
        loop, delay_s = asyncio.get_running_loop(), _FIRST_DELAY_S
        while True:
            started = loop.time()
            await self._says()
            _log.warning("name_server_ended", address=self._address)
            delay_s = _FIRST_DELAY_S if loop.time() - started > _STEADY_S else min(2 * delay_s, _LAST_DELAY_S)
            while not await self._restarted(delay_s):
                delay_s = min(2 * delay_s, _LAST_DELAY_S)

    async def _restarted(self, delay_s: float) -> bool:
        await asyncio.to_thread(self._end_child)
        await asyncio.sleep(delay_s)
        try:
            await self._start()
        except (OSError, TimeoutError) as error:
            _log.error("name_server_not_started", address=self._address, reason=str(error))
            return False
        return True

    def _end_child(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for stream in (child.stdin, child.stdout):
            if stream is not None:
                stream.close()
        try:
            child.wait(_END_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
