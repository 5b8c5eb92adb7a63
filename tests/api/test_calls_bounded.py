"""How much of the server one account can hold at once, and how long what its clients left behind is held."""

import asyncio
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import httpx2
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from skerry.api.http import HttpProtocol
from skerry.model.ids import CommandId, SandboxId
from skerry.testing.fake_guest import STDIN_ROOM

from .conftest import Running, Server, new_account
from .test_commands_http import run, until

EACH, ALL = 4, 6


class Watchful(HttpProtocol):
    look_every_s = 0.05


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that takes few calls at once."""
    running = Running(tmp_path_factory.mktemp("home"), Watchful, max_calls_per_account=EACH, max_calls=ALL)
    yield running.start()
    running.stop()


@pytest.fixture
def sandbox(http: httpx2.Client) -> str:
    return f"/v1/sandboxes/{http.post('/v1/sandboxes', json={}).json()['id']}"


def held(stack: ExitStack, http: httpx2.Client, sandbox: str, count: int) -> str:
    """Follow a command that goes on `count` times."""
    command = str(run(http, sandbox, argv=["cat"], stdin_stream=True, **{"async": True})["id"])
    for _ in range(count):
        answer = stack.enter_context(http.stream("GET", f"/v1/commands/{command}/events"))
        assert answer.status_code == 200
    return command


def test_an_account_has_so_many_calls_at_once_and_is_told(server: Server, http: httpx2.Client, sandbox: str) -> None:
    with ExitStack() as stack:
        command = held(stack, http, sandbox, EACH)
        for method, path in (("GET", f"/v1/commands/{command}/events"), ("PUT", f"{sandbox}/files/raw?path=x")):
            answer = http.request(method, path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "too_many_calls")
            assert str(EACH) in answer.json()["error"]["message"]
            assert int(answer.headers["retry-after"]) >= 1
        with pytest.raises(InvalidStatus) as error:
            connect(
                f"{server.url.replace('http', 'ws', 1)}/v1/commands/{command}/ws",
                additional_headers={"Authorization": f"Bearer {server.key}"},
            )
        assert error.value.response.status_code == 429
        # Whoever is at the limit can always end what holds them there.
        assert http.post(f"/v1/commands/{command}/kill").status_code == 200
    until(lambda: http.get(sandbox).status_code == 200)


def test_a_socket_is_a_call_for_as_long_as_it_is_open(server: Server, http: httpx2.Client, sandbox: str) -> None:
    path = http.post(f"{sandbox}/terminals", json={"argv": ["cat"]}).headers["location"]
    address = f"{server.url.replace('http', 'ws', 1)}{path}/ws"
    headers = {"Authorization": f"Bearer {server.key}"}
    with ExitStack() as stack:
        for _ in range(EACH):
            stack.enter_context(connect(address, additional_headers=headers))
        assert http.get(sandbox).status_code == 429
    until(lambda: http.get(sandbox).status_code == 200)


def test_all_accounts_together_have_so_many_and_one_leaves_room_to_another(
    server: Server, http: httpx2.Client, sandbox: str
) -> None:
    _, other_key = server.call(new_account(server.deps))
    with (
        ExitStack() as stack,
        httpx2.Client(base_url=server.url, headers={"X-API-Key": other_key}, timeout=30) as other,
    ):
        held(stack, http, sandbox, EACH)
        assert other.get("/v1/me").status_code == 200
        theirs = f"/v1/sandboxes/{other.post('/v1/sandboxes', json={}).json()['id']}"
        command = held(stack, other, theirs, ALL - EACH)
        answer = other.get("/v1/me")
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "server_full")
        assert http.get("/healthz").status_code == 200
        assert other.post(f"/v1/commands/{command}/kill").status_code == 200
    until(lambda: other_is_free(server, other_key))
    with httpx2.Client(base_url=server.url, headers={"X-API-Key": other_key}, timeout=30) as other:
        assert other.delete(theirs).status_code == 204


def other_is_free(server: Server, key: str) -> bool:
    return httpx2.get(f"{server.url}/v1/me", headers={"X-API-Key": key}).status_code == 200


def post_input(server: Server, sandbox: str, command: str, size: int, announced: int) -> socket.socket:
    """Send as much as the command's pipe takes, then `size` bytes that wait."""
    host, port = server.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)), timeout=10)
    head = f"POST /v1/commands/{command}/stdin HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key}\r\n"
    raw.sendall(f"{head}Content-Length: {STDIN_ROOM + announced}\r\n\r\n".encode() + bytes(STDIN_ROOM))
    inside = server.provider.guest(SandboxId(sandbox.rpartition("/")[2]))
    until(lambda: len(inside.stdin_of(CommandId(command))) >= STDIN_ROOM)
    raw.settimeout(0.5)
    with suppress(TimeoutError):  # nobody takes all of it
        raw.sendall(bytes(size))
    return raw


RESET = struct.pack("ii", 1, 0)


@pytest.mark.parametrize(
    ("size", "announced", "linger"),
    [
        (40_000, 40_000, None),
        (40_000, 80_000, None),
        (150_000, 150_000, None),
        (150_000, 300_000, RESET),
        (32 << 20, 32 << 20, RESET),
    ],
    ids=["all sent", "not all sent", "more than is read ahead", "reset", "more than the system holds"],
)
def test_input_that_nobody_reads_is_given_up_when_its_client_has_gone(
    server: Server, http: httpx2.Client, sandbox: str, size: int, announced: int, linger: bytes | None
) -> None:
    body = {"argv": ["sleep", "600"], "stdin_stream": True, "timeout_seconds": 900, "async": True}
    commands = [str(run(http, sandbox, **body)["id"]) for _ in range(EACH)]
    clients = [post_input(server, sandbox, command, size, announced) for command in commands]
    until(lambda: http.get(sandbox).status_code == 429)
    for client in clients:
        if linger is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        client.close()
    until(lambda: http.get(sandbox).status_code == 200)
    for command in commands:
        assert http.get(f"/v1/commands/{command}").json()["status"] == "running"
        http.post(f"/v1/commands/{command}/kill")


async def test_a_client_that_is_slow_and_there_is_waited_for(server: Server, http: httpx2.Client, sandbox: str) -> None:
    command = run(http, sandbox, command="sleep 1; cat", stdin_stream=True, timeout_seconds=60, **{"async": True})["id"]
    size = 8 * STDIN_ROOM
    answer = await asyncio.to_thread(
        http.post, f"/v1/commands/{command}/stdin", content=bytes(size), params={"eof": True}
    )
    assert answer.json() == {"written_bytes": size}
