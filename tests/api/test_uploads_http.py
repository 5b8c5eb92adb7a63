"""Transfers that fail: told as soon as it is known, with a code, however much is still to come."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from skerry.model.errors import Conflict, GuestError, Invalid, SkerryError
from skerry.model.ids import SandboxId
from skerry.sdk import AsyncSkerry, Skerry

from .conftest import Running, Server

BLOCK = bytes(1 << 20)
HUGE = 64 << 30  # bytes: hours, if they were all sent
SOON_S = 5.0


@pytest.fixture
def box(http: httpx2.Client) -> str:
    box = http.post("/v1/sandboxes", json={}).json()["id"]
    http.put(f"/v1/sandboxes/{box}/files/raw?path=file", content=b"old").raise_for_status()
    return box


class Source:
    """Endless bytes; `sent` counts them."""

    def __init__(self) -> None:
        self.sent = 0

    def __iter__(self) -> Iterator[bytes]:
        while self.sent < HUGE:
            self.sent += len(BLOCK)
            yield BLOCK

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for block in self:
            yield block


REFUSED = [("file/below", GuestError, "not_a_directory"), ("big", Invalid, "too_large")]


@pytest.mark.parametrize(("path", "kind", "code"), REFUSED)
def test_the_client_raises_the_server_s_error_in_the_middle_of_sending(
    server: Server, box: str, path: str, kind: type[SkerryError], code: str
) -> None:
    source, begun = Source(), time.monotonic()
    with Skerry(server.url, server.key) as client, pytest.raises(kind) as caught:
        client.get(box).files.write_stream(path, source)
    assert (caught.value.code, time.monotonic() - begun < SOON_S) == (code, True)
    assert source.sent < 1 << 30


@pytest.mark.parametrize(("path", "kind", "code"), REFUSED)
async def test_the_asynchronous_client_raises_it_too(
    server: Server, box: str, path: str, kind: type[SkerryError], code: str
) -> None:
    source = Source()
    async with AsyncSkerry(server.url, server.key) as client, asyncio.timeout(SOON_S):
        sandbox = await client.get(box)
        with pytest.raises(kind) as caught:
            await sandbox.files.write_stream(path, source)
        assert caught.value.code == code
    assert source.sent < 1 << 30


def test_bytes_at_hand_are_not_sent_to_the_end_either(server: Server, box: str) -> None:
    with Skerry(server.url, server.key) as client:
        with pytest.raises(Invalid) as caught:
            client.get(box).files.write("big", bytes(256 << 20))
        assert caught.value.code == "too_large"
        # The connections of this client are as good as before.
        assert client.get(box).files.read("file") == b"old"


def test_a_client_that_only_sends_is_answered_and_cut_off(server: Server, box: str) -> None:
    with _sending(server, f"/v1/sandboxes/{box}/files/raw?path=file/below", HUGE) as raw:
        begun = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - begun < 30:
                raw.sendall(BLOCK)
        assert time.monotonic() - begun < 2 * SOON_S
        head, _, body = raw.recv(65_536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400")
    assert b"connection: close" in head.lower()
    assert json.loads(body)["error"]["code"] == "not_a_directory"


def test_a_client_that_stops_sending_is_answered_all_the_same(server: Server, box: str) -> None:
    with _sending(server, f"/v1/sandboxes/{box}/files/raw?path=file/below", HUGE) as raw:
        raw.settimeout(SOON_S)
        assert raw.recv(65_536).startswith(b"HTTP/1.1 400")
        raw.settimeout(2 * SOON_S)
        while raw.recv(65_536):
            pass  # the rest of the answer, then its end


def test_a_short_body_that_is_refused_leaves_its_connection(server: Server, box: str) -> None:
    with socket.create_connection(_address(server)) as raw:
        raw.settimeout(SOON_S)
        for _ in range(3):
            raw.sendall(_head(server, f"/v1/sandboxes/{box}/files/raw?path=file/below", 1000) + bytes(1000))
            assert b"connection: close" not in raw.recv(65_536).lower()


def test_a_download_of_a_sandbox_that_is_destroyed_meanwhile_says_so(server: Server, box: str) -> None:
    guest = server.provider.guest(SandboxId(box))
    guest.files.put("/workspace/large", bytes(64 << 20))  # more than lies in sockets on the way
    with Skerry(server.url, server.key) as client:
        sandbox = client.get(box)
        with pytest.raises(Conflict) as caught, sandbox.files.read_stream("large") as chunks:
            for _ in chunks:
                sandbox.destroy()
    assert caught.value.code == "sandbox_destroyed"


def test_an_upload_is_told_that_the_server_is_being_stopped(tmp_path: Path) -> None:
    running = Running(tmp_path)
    server = running.start()
    with Skerry(server.url, server.key) as client:
        box = client.create().id
    path = f"/v1/sandboxes/{box}/files/raw?path=slow"
    with socket.create_connection(_address(server)) as raw:
        raw.settimeout(SOON_S)
        raw.sendall(_head(server, path, 7 * len(BLOCK), "Expect: 100-continue"))
        assert raw.recv(65_536).startswith(b"HTTP/1.1 100")
        raw.sendall(BLOCK)
        running.stop()
        head, _, body = raw.recv(65_536).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 503")
    assert json.loads(body)["error"]["code"] == "unavailable"


def _sending(server: Server, path: str, length: int) -> socket.socket:
    raw = socket.create_connection(_address(server))
    raw.sendall(_head(server, path, length))
    return raw


def _head(server: Server, path: str, length: int, *more: str) -> bytes:
    lines = (f"PUT {path} HTTP/1.1", "Host: x", f"X-API-Key: {server.key}", f"Content-Length: {length}", *more, "", "")
    return "\r\n".join(lines).encode()


def _address(server: Server) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return host, int(port)
