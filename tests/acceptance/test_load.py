"""Much at once: a large download beside commands, clients that dawdle, many sandboxes made and destroyed."""

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from acceptance.hostile import answers, latencies_ms, true_once
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

from skerry import Sandbox, Skerry

pytestmark = pytest.mark.long

MIB = 1 << 20


@contextmanager
def flat(server: Server, allowed_mb: int = 40) -> Iterator[Callable[[], None]]:
    """API and node do not grow by more than `allowed_mb`: not at any call of what is yielded, and not at the end."""
    before = {part: server.memory_of(part) for part in ("api", "node")}

    def check() -> None:
        for part, then in before.items():
            grown = (server.memory_of(part) - then) / MIB
            assert grown < allowed_mb, f"{part} grew by {grown:.0f} MB"

    yield check
    check()


@on_both
@pytest.mark.timeout(300)
def test_a_download_of_two_gigabytes_does_not_hold_up_commands(
    server: Server, sandbox: Sandbox, client: Skerry
) -> None:
    """The same sandbox and another one: half of the commands are no slower than 3 times idle, all end soon."""
    size = 2 << 30
    sandbox.commands.run(f"truncate -s {size} big").check()
    idle = latencies_ms(lambda: true_once(sandbox), 60)
    got = 0
    busy: list[float] = []
    ended = threading.Event()

    def measure() -> None:
        with server.client() as other:
            box = other.get(sandbox.id)
            while not ended.is_set():
                busy.extend(latencies_ms(lambda: true_once(box), 1))

    measuring = threading.Thread(target=measure)
    begun = time.monotonic()
    with flat(server) as check, sandbox.files.read_stream("big") as chunks:
        measuring.start()
        try:
            looked_at = 0
            for chunk in chunks:
                got += len(chunk)
                if got - looked_at > 256 * MIB:
                    check()
                    looked_at = got
        finally:
            ended.set()
            measuring.join()
    took = time.monotonic() - begun
    assert got == size
    busy.sort()
    told = (
        f"{server.runtime}: {size / MIB / took:.0f} MiB/s; exec p50 {idle[30]:.1f} → {busy[len(busy) // 2]:.1f} ms, "
        f"p99 {idle[-1]:.1f} → {busy[int(len(busy) * 0.99)]:.1f} ms, n={len(busy)}"
    )
    print(told)
    assert len(busy) > 20, told
    assert busy[len(busy) // 2] < 3 * idle[30] + 40, told
    assert busy[-1] < 3000, told


class Dawdler:
    """A client on a bare socket with a small receive buffer, so that what it does not read stays with the server."""

    def __init__(self, server: Server, head: str) -> None:
        place = urlsplit(server.url)
        self.wire = socket.socket()
        self.wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.wire.settimeout(60)
        self.wire.connect((place.hostname, place.port))
        self.wire.sendall(f"{head}\r\nHost: {place.netloc}\r\nAuthorization: Bearer {server.key}\r\n\r\n".encode())

    def __enter__(self) -> "Dawdler":
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()


@on_both
@pytest.mark.parametrize("pace", ["1 KB a second", "not at all"])
def test_clients_that_hardly_read_cost_no_memory_and_hold_up_nobody(
    server: Server, sandbox: Sandbox, client: Skerry, pace: str
) -> None:
    sandbox.commands.run("truncate -s 300M big").check()
    loud = sandbox.commands.start("head -c 60000000 /dev/zero", timeout_s=100)
    heads = [
        f"GET /v1/commands/{loud.id}/events?offset=0 HTTP/1.1",
        f"GET /v1/commands/{loud.id}/output HTTP/1.1",
        f"GET /v1/sandboxes/{sandbox.id}/files/raw?path=big HTTP/1.1",
    ]
    idle = latencies_ms(lambda: true_once(sandbox), 30)
    with flat(server) as check, client.create("python") as neighbour:
        dawdlers = [Dawdler(server, head) for head in heads * 8]
        try:
            until = time.monotonic() + 6
            while time.monotonic() < until:
                for dawdler in dawdlers if pace != "not at all" else []:
                    assert dawdler.wire.recv(1024 // 4)
                check()
                for box in (sandbox, neighbour):
                    taken = latencies_ms(lambda box=box: true_once(box), 5)
                    assert taken[2] < 3 * idle[15] + 100, (idle, taken)
                time.sleep(0.1)
            assert loud.wait().ok  # read by another, the command ends, whoever dawdles
        finally:
            for dawdler in dawdlers:
                dawdler.wire.close()
    answers(sandbox)


@on_both
def test_uploads_that_dawdle_or_stop_leave_nothing_and_hold_up_nobody(
    server: Server, sandbox: Sandbox, client: Skerry
) -> None:
    sandbox.files.write("kept", b"old")
    before = open_descriptors(server)
    with flat(server) as check:
        heads = [
            f"PUT /v1/sandboxes/{sandbox.id}/files/raw?path=kept HTTP/1.1\r\nContent-Length: 1000000",
            f"POST /v1/sandboxes/{sandbox.id}/commands HTTP/1.1\r\nContent-Type: application/json\r\n"
            "Content-Length: 100",
        ]
        dawdlers = [Dawdler(server, head) for head in heads * 10]
        for _ in range(100):
            for dawdler in dawdlers[:10]:
                dawdler.wire.sendall(b"{")
        check()
        taken = latencies_ms(lambda: true_once(sandbox), 10)
        assert taken[5] < 1000, taken
        assert sandbox.files.read("kept") == b"old"
        for dawdler in dawdlers:
            dawdler.wire.close()
    eventually("no half of an upload is left", lambda: sandbox.commands.run("ls -A").stdout == "kept\n", within_s=30)
    # Each of the twenty held a descriptor at least; connections that are kept for later may be a few.
    eventually("their descriptors are closed", lambda: open_descriptors(server) < before + 12, within_s=30)
    assert sandbox.files.read("kept") == b"old"


def open_descriptors(server: Server) -> int:
    return sum(len(os.listdir(f"/proc/{server.pid(part)}/fd")) for part in ("api", "node"))  # noqa: PTH208
