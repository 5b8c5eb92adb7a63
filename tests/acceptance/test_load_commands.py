"""Ten thousand commands, and clients that vanish in the middle of one: nothing is left of either."""

import asyncio
import os
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
import ws_client
from acceptance.servers import Server, eventually
from acceptance.test_load_cycles import of_the_parts, stuck_rows

from skerry import Sandbox, Skerry

pytestmark = pytest.mark.long

COMMANDS = int(os.environ.get("SKERRY_TEST_EXECS", "10000"))
AT_ONCE = 8
MIB = 1 << 20


@pytest.mark.parametrize("runtime", ["crun"], indirect=True)
@pytest.mark.timeout(900)
def test_10_000_execs_with_vanishing_clients_leave_descriptors_threads_and_memory_flat(
    server: Server, sandbox: Sandbox
) -> None:
    mine = threading.local()
    clients: list[Skerry] = []

    def box() -> Sandbox:
        """The sandbox by a client of this thread's own."""
        if not hasattr(mine, "box"):
            clients.append(server.client())
            mine.box = clients[-1].get(sandbox.id)
        return mine.box

    def one(number: int) -> None:
        if number % 100 == 99:
            _vanish(server, sandbox, number)
            return
        result = box().commands.run(["echo", str(number)])
        assert (result.stdout, result.exit_code) == (f"{number}\n", 0)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(one, range(400)))  # what is made once, and kept, is made here
        eventually("all have ended", lambda: _running(server) == 0, within_s=30)
        parts = of_the_parts(server)
        memory = {part: server.memory_of(part) for part in ("api", "node")}
        inside = _processes(sandbox)
        list(pool.map(one, range(COMMANDS)))
    for each in clients:
        each.close()
    eventually("all have ended", lambda: _running(server) == 0, within_s=60)
    eventually("what vanished clients held is gone", lambda: not _more(parts, server), within_s=30, every_s=0.5)
    for part, then in memory.items():
        more = (server.memory_of(part) - then) / MIB
        print(f"{part} grew by {more:.1f} MB over {COMMANDS} commands")
        assert more < 30, part
    eventually("no process is left inside", lambda: _processes(sandbox) <= inside, every_s=0.5)


def _vanish(server: Server, sandbox: Sandbox, number: int) -> None:
    """Leave in the middle: of a command that is waited for, of one that is streamed, of a terminal."""
    if number % 300 == 299:
        asyncio.run(_leave_terminal(server, sandbox))
        return
    stream = "/stream" if number % 300 == 199 else ""
    body = '{"command":"echo begun; sleep 0.2; echo done"}'
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port)) as connection:
        head = (
            f"POST /v1/sandboxes/{sandbox.id}/commands{stream} HTTP/1.1\r\nHost: x\r\n"
            f"Authorization: Bearer {server.key}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        connection.sendall(f"{head}{body}".encode())
        if stream:
            assert connection.recv(64)


async def _leave_terminal(server: Server, sandbox: Sandbox) -> None:
    import httpx2

    headers = {"Authorization": f"Bearer {server.key}"}
    body = {"command": "echo begun; sleep 0.2; yes | head -c 300000"}
    async with httpx2.AsyncClient(headers=headers, base_url=server.url) as http:
        answer = await http.post(f"/v1/sandboxes/{sandbox.id}/terminals", json=body)
    async with ws_client.attached(server.url, answer.headers["location"], server.key, slow=True) as terminal:
        await terminal.shows(b"begun")
        terminal.connection.transport.abort()


def _running(server: Server) -> int:
    return sum("cmd_" in row[0] for row in stuck_rows(server))


def _more(before: dict[str, int], server: Server) -> dict[str, int]:
    return {what: now for what, now in of_the_parts(server).items() if now > before[what] + 6}


def _processes(sandbox: Sandbox) -> int:
    return int(sandbox.commands.run("ls -d /proc/[0-9]* | wc -l").stdout)
