"""The sandboxes' name server: hands DNS messages on to the host's resolvers and their answers back, unread.

Run as a program of its own (`dns.py` starts it), because every byte it takes comes from a sandbox: it gives up root
before it reads the first one, and a flood keeps this process busy, not the node. Standard library only, so that it
starts fast and alone. It talks to port 53 of the resolvers and to nothing else; it ends when its stdin does.
"""

import argparse
import asyncio
import contextlib
import ctypes
import os
import resource
import secrets
import socket
import struct
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import cast

_PORT = 53
_HEADER = 12
_ATTEMPT_S = 2.0
_TCP_IDLE_S = 10.0
_TCP_QUERIES = 200  # per connection
_QUERIES, _QUERIES_PER_CLIENT = 1500, 128
_CONNECTIONS, _CONNECTIONS_PER_CLIENT = 256, 16
_NOBODY = 65534
_PR_SET_NO_NEW_PRIVS = 38
_RESOLV_CONF = Path("/etc/resolv.conf")
# systemd-resolved's stub also answers from the host's own files and multicast; what it asks itself is listed here.
_RESOLVED_CONF = Path("/run/systemd/resolve/resolv.conf")

Address = tuple[str, int]


def host_servers(resolv_conf: Path = _RESOLV_CONF, behind_stub: Path = _RESOLVED_CONF) -> tuple[str, ...]:
    """The addresses of the resolvers the host uses; those behind systemd-resolved's stub when they are known."""
    servers = _nameservers(resolv_conf)
    if set(servers) <= {"127.0.0.53", "127.0.0.54"}:
        servers = _nameservers(behind_stub) or servers
    return servers


def _nameservers(path: Path) -> tuple[str, ...]:
    try:
        lines = [line.split() for line in path.read_text(errors="replace").splitlines()]
    except OSError:
        return ()
    found: list[str] = []
    for words in lines:
        if len(words) >= 2 and words[0] == "nameserver":
            with contextlib.suppress(ValueError):
                found.append(str(ip_address(words[1])))
    return tuple(found)


class Servers:
    """The resolvers to ask: given ones, or the host's, read again when its file changes (DHCP, a VPN)."""

    def __init__(self, given: Sequence[str], avoid: str) -> None:
        self._given = tuple(given)
        self._avoid = avoid  # our own address: asking it would go round in circles
        self._stamp: tuple[int, ...] = ()
        self._found: tuple[str, ...] = ()

    def __call__(self) -> tuple[str, ...]:
        if self._given:
            return self._given
        stamp = tuple(_changed_at(path) for path in (_RESOLV_CONF, _RESOLVED_CONF))
        if stamp != self._stamp:
            self._stamp = stamp
            self._found = tuple(server for server in host_servers() if server != self._avoid)
        return self._found


def _changed_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


class Room:
    """How much may be under way at once: in all, and for each client."""

    def __init__(self, total: int, per_client: int) -> None:
        self._total, self._per_client = total, per_client
        self._used: Counter[str] = Counter()

    def full(self, client: str) -> bool:
        return self._used[client] >= self._per_client or self._used.total() >= self._total

    @contextlib.contextmanager
    def taken(self, client: str) -> Generator[None]:
        self._used[client] += 1
        try:
            yield
        finally:
            self._used[client] -= 1
            if not self._used[client]:
                del self._used[client]


def is_query(message: bytes) -> bool:
    """Whether a message may be handed on: it has a header, and is no answer."""
    return len(message) >= _HEADER and not message[2] & 0x80


def failure(query: bytes) -> bytes:
    """SERVFAIL to a query: its id, and no more, since nothing in it was read."""
    return query[:2] + bytes([0x80 | query[2] & 0x79, 0x82]) + bytes(8)


class _OneAnswer(asyncio.DatagramProtocol):
    """Waits for the answer with the id; the socket is connected, so it comes from the resolver that was asked."""

    def __init__(self, query_id: bytes) -> None:
        self._id = query_id
        self.answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if data[:2] == self._id and len(data) >= _HEADER and data[2] & 0x80 and not self.answer.done():
            self.answer.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def ask_by_udp(query: bytes, server: str) -> bytes:
    """One attempt at one resolver. A fresh port and a fresh id: both have to be guessed to forge an answer."""
    query_id = secrets.token_bytes(2)
    loop = asyncio.get_running_loop()
    transport, waiting = await loop.create_datagram_endpoint(lambda: _OneAnswer(query_id), remote_addr=(server, _PORT))
    try:
        transport.sendto(query_id + query[2:])
        answer = await asyncio.wait_for(waiting.answer, _ATTEMPT_S)
        return query[:2] + answer[2:]
    finally:
        transport.close()


async def ask_by_tcp(query: bytes, server: str) -> bytes:
    async with asyncio.timeout(2 * _ATTEMPT_S):
        reader, writer = await asyncio.open_connection(server, _PORT)
        try:
            writer.write(struct.pack("!H", len(query)) + query)
            return await reader.readexactly(struct.unpack("!H", await reader.readexactly(2))[0])
        finally:
            writer.close()


async def resolve(query: bytes, servers: Sequence[str], ask: Callable[[bytes, str], Awaitable[bytes]]) -> bytes:
    """The first answer of the resolvers, asked one after the other; SERVFAIL when none gives one."""
    for server in servers:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            return await ask(query, server)
    return failure(query)


class UdpSide(asyncio.DatagramProtocol):
    """Takes queries by UDP. What there is no room for is dropped, as a full queue would; the client asks again."""

    def __init__(self, servers: Servers, tasks: asyncio.TaskGroup) -> None:
        self._servers, self._tasks = servers, tasks
        self._room = Room(_QUERIES, _QUERIES_PER_CLIENT)
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)  # by contract; by inheritance from 3.12 on

    def datagram_received(self, data: bytes, addr: Address) -> None:
        if is_query(data) and not self._room.full(addr[0]):
            self._tasks.create_task(self._answer(data, addr))

    async def _answer(self, query: bytes, client: Address) -> None:
        with self._room.taken(client[0]):
            answer = await resolve(query, self._servers(), ask_by_udp)
        if self._transport is not None:
            self._transport.sendto(answer, client)


class TcpSide:
    """Takes queries by TCP, one after the other on each connection."""

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._room = Room(_CONNECTIONS, _CONNECTIONS_PER_CLIENT)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client = str((writer.get_extra_info("peername") or ("?",))[0])
        try:
            if not self._room.full(client):
                with self._room.taken(client):
                    await self._converse(reader, writer)
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            pass  # the client is gone, or says nothing: nobody to tell
        finally:
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(_TCP_QUERIES):
            async with asyncio.timeout(_TCP_IDLE_S):
                query = await reader.readexactly(struct.unpack("!H", await reader.readexactly(2))[0])
            if not is_query(query):
                return
            answer = await resolve(query, self._servers(), ask_by_tcp)
            writer.write(struct.pack("!H", len(answer)) + answer)
            async with asyncio.timeout(_TCP_IDLE_S):
                await writer.drain()


def give_up_root() -> None:
    """Become nobody, for good, with room for the sockets needed and no more."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    ctypes.CDLL(None).prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        os.setresuid(_NOBODY, _NOBODY, _NOBODY)


async def _stdin_ends() -> None:
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, lambda: os.read(0, 4096) or ended.set())
    await ended.wait()
    loop.remove_reader(0)


async def serve(udp: socket.socket, tcp: socket.socket, servers: Servers) -> None:
    """Serve on two bound sockets until stdin ends."""
    side = TcpSide(servers)
    async with asyncio.TaskGroup() as tasks:
        loop = asyncio.get_running_loop()
        listening, _ = await loop.create_datagram_endpoint(lambda: UdpSide(servers, tasks), sock=udp)
        server = await asyncio.start_server(side.serve, sock=tcp, limit=1 << 16)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await _stdin_ends()
        listening.close()
        server.close()
        os._exit(0)  # the queries that are under way have nobody left to answer to


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--udp-fd", type=int, required=True)
    parser.add_argument("--tcp-fd", type=int, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--servers", default="")
    options = parser.parse_args()
    give_up_root()
    servers = Servers([s for s in options.servers.split(",") if s], options.address)
    udp, tcp = socket.socket(fileno=options.udp_fd), socket.socket(fileno=options.tcp_fd)
    asyncio.run(serve(udp, tcp, servers))


if __name__ == "__main__":
    main()
