"""What an unknown client can hold of the server before it has said who it is: little, and not for long."""

import asyncio
import socket
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import httpx2
import pytest
import uvicorn
from websockets.asyncio.client import connect

from skerry.api.http import HEAD_BYTES, HttpProtocol, OnePiece
from skerry.api.websocket import WebSocketProtocol

from .conftest import Server

WITHIN_S = 0.3
SOON_S = 10.0
MOST_SENT = 64 << 20  # far more than any buffer on the way


class Impatient(HttpProtocol):
    head_within_s = WITHIN_S


@asynccontextmanager
async def served() -> AsyncGenerator[int]:
    """The port of a server that answers 204, and echoes on WebSockets."""

    async def app(scope: dict[str, str], receive: object, send: object) -> None:
        if scope["type"] == "http":
            await send({"type": "http.response.start", "status": 204})  # type: ignore[operator]
            await send({"type": "http.response.body"})  # type: ignore[operator]
            return
        await receive()  # type: ignore[operator]
        await send({"type": "websocket.accept"})  # type: ignore[operator]
        while (message := await receive())["type"] == "websocket.receive":  # type: ignore[operator]
            await send({"type": "websocket.send", "text": message["text"]})  # type: ignore[operator]

    settings = uvicorn.Config(
        app,  # type: ignore[arg-type]
        port=0,
        lifespan="off",
        log_level="error",
        http=Impatient,
        ws=WebSocketProtocol,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(settings)
    serving = asyncio.ensure_future(server.serve())
    while not server.started:  # noqa: ASYNC110 (uvicorn offers no event)
        await asyncio.sleep(0.005)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await serving


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (b"GET / HTTP/1.1\r\nHost: x\r\n", b"X-More: 0123456789\r\n" * 1000),
        (b"GET / HTTP/1.1\r\nX-Long: ", b"0123456789" * 2000),
        (b"GET /", b"0123456789" * 2000),
        (b"", b"\r\n" * 10_000),
    ],
    ids=["many headers", "a long header", "a long address", "empty lines"],
)
def test_a_head_without_end_is_cut_off(server: Server, head: bytes, more: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    sent = 0
    # The error of sending is how it is seen that the other end has closed.
    with socket.create_connection((host, int(port)), timeout=SOON_S) as raw, suppress(OSError):
        raw.sendall(head)
        while sent < MOST_SENT:
            raw.sendall(more)
            sent += len(more)
    assert sent < MOST_SENT


def test_a_head_that_is_too_long_is_answered(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SOON_S) as raw:
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * (HEAD_BYTES + 1))
        answer = b""
        while more := raw.recv(65_536):
            answer += more
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert b'"too_large"' in answer


@pytest.mark.parametrize(
    ("begun", "more"),
    [
        (b"0\r\n", b"X-More: 0123456789\r\n" * 1000),
        (b"0\r\nX-Long: ", b"0123456789" * 2000),
        (b"4\r\nbody\r\n0\r\n", b"X-More: 0123456789\r\n" * 1000),
        (b"1;", b"extension" * 2000),
        (b"", b"0" * 20_000),
    ],
    ids=["many headers", "a long header", "behind a body", "a long extension", "a long number"],
)
def test_what_is_no_body_between_and_behind_chunks_is_cut_off(
    server: Server, http: httpx2.Client, begun: bytes, more: bytes
) -> None:
    sandbox = http.post("/v1/sandboxes", json={}).json()["id"]
    host, port = server.url.removeprefix("http://").split(":")
    sent = 0
    head = f"PUT /v1/sandboxes/{sandbox}/files/raw?path=x HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key}\r\n"
    with socket.create_connection((host, int(port)), timeout=SOON_S) as raw, suppress(OSError):
        raw.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + begun)
        while sent < MOST_SENT:
            raw.sendall(more)
            sent += len(more)
    assert sent < MOST_SENT


async def test_small_chunks_are_a_body_however_many(server: Server, http: httpx2.Client) -> None:
    sandbox = http.post("/v1/sandboxes", json={}).json()["id"]
    path = f"/v1/sandboxes/{sandbox}/files/raw"
    pieces = (b"x" for _ in range(HEAD_BYTES))
    assert (await asyncio.to_thread(http.put, path, params={"path": "f"}, content=pieces)).status_code == 200
    assert http.get(path, params={"path": "f"}).content == b"x" * HEAD_BYTES


def test_a_header_behind_a_body_is_none(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=SOON_S) as raw:
        head = b"GET /v1/me HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
        raw.sendall(head + f"0\r\nX-API-Key: {server.key}\r\n\r\n".encode())
        assert raw.recv(65_536).startswith(b"HTTP/1.1 401 ")


async def test_the_end_of_a_body_counts_as_no_head_however_much_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HttpProtocol] = []

    def connection_made(self: HttpProtocol, transport: asyncio.Transport) -> None:
        made.append(self)
        HttpProtocol.connection_made(self, transport)

    monkeypatch.setattr(Impatient, "connection_made", connection_made)
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        size = 2 * HEAD_BYTES
        async with asyncio.timeout(SOON_S):
            while not made:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            # How it is cut on its way is the system's choice; here it comes as the head, then all of the body.
            made[0].data_received(f"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
            made[0].data_received(b"x" * size)
            assert (await reader.readline()).startswith(b"HTTP/1.1 204 ")
        writer.close()


def test_long_heads_that_end_are_taken_on_one_connection(http: httpx2.Client) -> None:
    for _ in range(3):
        assert http.get("/v1/me", headers={"X-Long": "x" * (HEAD_BYTES // 2)}).status_code == 200


async def test_the_last_piece_of_a_body_is_no_head(server: Server) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = b'{"name": "' + b"x" * (HEAD_BYTES * 2) + b'"}'
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key}\r\nContent-Type: application/json\r\n"
    for _ in range(2):
        writer.write(f"{head}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        writer.write(body)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400")
        assert b"at most 200" in await reader.readuntil(b"}}")
    writer.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET / HTTP/1.1\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 60000\r\n\r\n",
    ],
    ids=["nothing", "half a head", "half a second head", "a body that nobody asked for"],
)
async def test_a_client_that_only_trickles_is_cut_off(begun: bytes) -> None:
    async with served() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(begun)
        cut = asyncio.ensure_future(reader.read())
        since = time.monotonic()
        with suppress(OSError):
            while not cut.done() and time.monotonic() - since < SOON_S:
                if begun:
                    writer.write(b"x")
                await asyncio.wait([cut], timeout=WITHIN_S / 5)
        assert cut.done()
        with suppress(OSError):
            await cut
        writer.close()


async def test_an_open_websocket_and_a_connection_in_use_are_no_trickle() -> None:
    async with served() as port, connect(f"ws://127.0.0.1:{port}", compression=None, ping_interval=None) as socket:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        until = time.monotonic() + 3 * WITHIN_S
        while time.monotonic() < until:
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 204")
            await asyncio.sleep(WITHIN_S / 3)
        await socket.send("still there")
        assert await socket.recv() == "still there"
        writer.close()


# -- answers that leave whole ------------------------------------------------------------------------------------------

HEAD_OF_TWO = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Sent:
    """A transport that keeps what it is given to write, call by call."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        assert not self.closed
        self.written.append(data)

    def close(self) -> None:
        self.closed = True


def one_piece() -> tuple[OnePiece, Sent]:
    sent = Sent()
    return OnePiece(sent), sent  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_small_answer_leaves_whole() -> None:
    shown, sent = one_piece()
    shown.write(HEAD_OF_TWO)
    assert sent.written == []
    shown.write(b"{}")
    assert sent.written == [HEAD_OF_TWO + b"{}"]


def test_an_empty_body_lets_the_head_go() -> None:
    shown, sent = one_piece()
    head = b"HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n"
    shown.write(head)
    shown.write(b"")
    assert sent.written == [head]


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 104857600\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_every_other_head_leaves_at_once(head: bytes) -> None:
    shown, sent = one_piece()
    shown.write(head)
    assert sent.written == [head]


def test_a_body_that_looks_like_a_head_waits_for_nothing() -> None:
    shown, sent = one_piece()
    shown.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
    shown.write(HEAD_OF_TWO)
    assert sent.written[1:] == [HEAD_OF_TWO]


def test_an_answer_that_breaks_off_shows_its_head() -> None:
    shown, sent = one_piece()
    shown.write(HEAD_OF_TWO)
    shown.close()
    assert sent.written == [HEAD_OF_TWO] and sent.closed


def test_the_head_alone_is_answered(http: httpx2.Client, server: Server) -> None:
    with socket.create_connection((httpx2.URL(server.url).host, httpx2.URL(server.url).port or 0), 10) as raw:
        raw.sendall(b"HEAD /openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        assert raw.recv(65_536).startswith(b"HTTP/1.1 ")
        raw.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := raw.recv(65_536):
            received += piece
        assert received.count(b"HTTP/1.1 200") == 1
