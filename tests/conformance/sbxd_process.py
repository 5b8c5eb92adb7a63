"""A real sbxd as pid 1 of namespaces of its own (pid, net, mount, uts) on this machine's files, for tests."""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from skerry.guest.connection import ServerHandler, connect
from skerry.guest.sbxd_guest import SbxdGuest

BINARY = Path(os.environ["SBXD_BINARY"]).absolute()
DEADLINE_S = 20.0
_INIT = f"mount -t tmpfs tmpfs /run && mkdir /run/skerry && ip link set lo up && exec {BINARY} init"


class Sbxd:
    """The process. `guest()` is its first connection, `bridge()` each later one."""

    def __init__(self, process: asyncio.subprocess.Process, stdio: socket.socket) -> None:
        self.secret = secrets.token_bytes(32)
        self._process = process
        self._stdio = stdio
        self._bridges: list[asyncio.subprocess.Process] = []

    @property
    def pid(self) -> int:
        """As seen from outside."""
        own = self._process.pid
        return int(Path(f"/proc/{own}/task/{own}/children").read_text())

    async def guest(self, *, on_server: ServerHandler | None = None) -> SbxdGuest:
        return SbxdGuest(await connect(self._stdio, secret=self.secret, first=True, on_server=on_server))

    async def bridge(self, secret: bytes | None = None) -> SbxdGuest:
        ours, theirs = socket.socketpair()
        namespace = f"--net=/proc/{self._process.pid}/ns/net"
        with theirs:
            self._bridges.append(
                await asyncio.create_subprocess_exec(
                    "nsenter", namespace, BINARY, "bridge", stdin=theirs, stdout=theirs
                )
            )
        return SbxdGuest(await connect(ours, secret=secret or self.secret, first=False))

    async def stop(self) -> None:
        """Kill it, and with it everything in its pid namespace."""
        if self._process.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
        for process in (self._process, *self._bridges):
            async with asyncio.timeout(DEADLINE_S):
                await process.wait()


@asynccontextmanager
async def running_sbxd() -> AsyncIterator[Sbxd]:
    ours, theirs = socket.socketpair()
    namespaces = ("--uts", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
    with theirs:
        process = await asyncio.create_subprocess_exec(
            "unshare", *namespaces, "sh", "-c", _INIT, stdin=theirs, stdout=theirs
        )
    sbxd = Sbxd(process, ours)
    try:
        yield sbxd
    finally:
        await sbxd.stop()
        ours.close()
