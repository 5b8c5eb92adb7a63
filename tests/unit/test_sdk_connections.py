"""How requests lie on the wire: a small one in one piece, and none that waits for ever."""

import asyncio
import socket
import threading

import httpcore2
import pytest

from skerry.sdk._async.early import AsyncEarlyStream
from skerry.sdk._sync.early import EarlyStream
from skerry.sdk._sync.http import Http

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
HEAD = b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n"


class Pieces:
    """A network stream that keeps what it was given to send, call by call."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.broken = False

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return ANSWER

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if self.broken:
            raise httpcore2.WriteError("gone")
        self.sent.append(bytes(buffer))

    def get_extra_info(self, info: str) -> object:
        return None


class AsyncPieces(Pieces):
    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # type: ignore[override]
        return super().read(max_bytes, timeout)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # type: ignore[override]
        super().write(buffer, timeout)


def early() -> tuple[EarlyStream, Pieces]:
    pieces = Pieces()
    return EarlyStream(pieces), pieces  # pyright: ignore[reportArgumentType]


def test_a_head_waits_for_its_small_body() -> None:
    stream, pieces = early()
    stream.write(HEAD)
    assert pieces.sent == []
    stream.write(b"body")
    assert pieces.sent == [HEAD + b"body"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
        b"PUT / HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n",
        b"PUT / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
)
def test_every_other_head_is_sent_at_once(head: bytes) -> None:
    stream, pieces = early()
    stream.write(head)
    assert pieces.sent == [head]


def test_what_waits_is_sent_before_an_answer_is_read() -> None:
    stream, pieces = early()
    stream.write(HEAD)
    assert stream.read(100) == ANSWER
    assert pieces.sent == [HEAD]


def test_an_answer_is_read_where_sending_failed() -> None:
    stream, pieces = early()
    stream.write(HEAD)
    pieces.broken = True
    assert stream.read(100) == ANSWER


def test_the_asynchronous_half_does_the_same() -> None:
    pieces = AsyncPieces()
    stream = AsyncEarlyStream(pieces)  # pyright: ignore[reportArgumentType]

    async def work() -> None:
        await stream.write(HEAD)
        await stream.write(b"body")
        await stream.write(HEAD)
        await stream.read(100)

    asyncio.run(work())
    assert pieces.sent == [HEAD + b"body", HEAD]


def test_large_content_is_sent_whole() -> None:
    stream, pieces = early()
    content = bytes(range(256)) * 4000
    stream.write(content)
    assert b"".join(pieces.sent) == content and len(pieces.sent) > 1


def test_a_call_goes_out_in_one_piece_and_each_to_its_own_address() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    received: list[bytes] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for _ in range(3):
                received.append(connection.recv(65_536))
                connection.sendall(ANSWER)

    thread = threading.Thread(target=serve)
    thread.start()
    http = Http(f"http://127.0.0.1:{listener.getsockname()[1]}/under", "key", timeout_s=5, retries=0)
    for path in ("/v1/a", "/v1/b", "/v1/a"):
        http.call("POST", path, body=b'{"x":1}', params={"q": "ä&"} if path == "/v1/b" else None)
    http.close()
    thread.join(10)
    listener.close()
    assert [each.split(b" ", 2)[1] for each in received] == [b"/under/v1/a", b"/under/v1/b?q=%C3%A4%26", b"/under/v1/a"]
    assert all(each.endswith(b'{"x":1}') for each in received)
