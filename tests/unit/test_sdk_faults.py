"""Networks, proxies and settings that fail: the client tells it by errors of its own, and by none of its libraries."""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_sdk_pieces import VIEW as COMMAND
from test_sdk_retries import VIEW

from skerry import AsyncSkerry, Invalid, ProtocolError, Sandbox, Skerry, SkerryError, Unauthorized, Unreachable
from skerry.sdk._sync.http import Http
from skerry.sdk._sync.sandbox import Sandbox as SandboxOf
from skerry.wire.sandboxes import SandboxView

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json", more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\n%bContent-Length: %d\r\n\r\n" % (status, kind, more, len(body))
    return head + body


def streamed(body: bytes) -> bytes:
    """An event stream whose connection closes in the middle."""
    return b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n" + (
        b"%x\r\n%b\r\n" % (len(body), body)
    )


class Peer:
    """Answers requests with `answers`, one each, then with the last again, and closes; with `reset` it breaks hard."""

    def __init__(self) -> None:
        self.answers: list[bytes] = []
        self.reset = False
        self.requests: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(5)
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = b""
        while b"\r\n\r\n" not in request and not request.startswith(b"\x16"):  # TLS
            piece = connection.recv(65536)
            if not piece:
                return
            request += piece
        head, _, body = request.partition(b"\r\n\r\n")
        length = next(
            (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while len(body) < length:
            body += connection.recv(65536)
        self.requests.append(head)
        answer = self.answers[min(len(self.requests), len(self.answers)) - 1]
        connection.sendall(answer)
        if self.reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.close()


@pytest.fixture
def client(peer: Peer) -> Iterator[Skerry]:
    with Skerry(peer.url, "key", retries=0, timeout_s=0.5) as client:
        yield client


def box(client: Skerry) -> Sandbox:
    http: Http = client._http
    return SandboxOf(http, SandboxView.model_validate(VIEW))


CALLS: dict[str, Callable[[Skerry, Path], object]] = {
    "me": lambda c, _: c.me(),
    "usage": lambda c, _: c.usage(),
    "keys.list": lambda c, _: c.keys.list(),
    "keys.create": lambda c, _: c.keys.create(),
    "list": lambda c, _: c.list().all(),
    "find": lambda c, _: c.find("name"),
    "create": lambda c, _: c.create(),
    "templates": lambda c, _: c.templates.list(),
    "build": lambda c, _: list(c.templates.build("x")),
    "update": lambda c, _: box(c).update(name="x"),
    "set_env": lambda c, _: box(c).set_env({}),
    "processes": lambda c, _: box(c).processes(),
    "ports": lambda c, _: box(c).ports(),
    "run": lambda c, _: box(c).commands.run("x"),
    "start": lambda c, _: box(c).commands.start("x"),
    "run_code": lambda c, _: box(c).run_code("x"),
    "shell": lambda c, _: box(c).shell(),
    "startup": lambda c, _: box(c).startup.get(),
    "git": lambda c, _: box(c).git.clone("https://x/y"),
    "files.list": lambda c, _: box(c).files.list(),
    "files.write": lambda c, _: box(c).files.write("x", b"x"),
    "files.write_many": lambda c, _: box(c).files.write_many({"x": b"x"}),
    "files.touch": lambda c, _: box(c).files.touch("x"),
    "files.watch": lambda c, _: _first(c),
    "files.download": lambda c, here: box(c).files.download("x", here / "local"),
    "files.download_dir": lambda c, here: box(c).files.download_dir("x", here / "in"),
    "files.upload_dir": lambda c, here: box(c).files.upload_dir(here / "up"),
}


def _first(client: Skerry) -> object:
    with box(client).files.watch() as changes:
        return next(changes)


HTML = b"<html><body>Sign in to the hotel's network</body></html>"
FAULTS: dict[str, bytes] = {
    "nothing": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.2\r\n",
    "half a head": b"HTTP/1.1 200 OK\r\nContent-",
    "cut in the body": OK + b'Content-Length: 1000\r\n\r\n{"id": "sbx_',
    "cut between chunks": OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n",
    "no chunk": OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    "truncated JSON": whole(b'{"id": "sbx_'),
    "other JSON": whole(b'{"data": [{"id": 5}], "next": {}}'),
    "no object": whole(b"[null]"),
    "not UTF-8": whole(b'{"id": "\xff"}'),
    "a proxy's page": whole(HTML, kind=b"text/html"),
    "a proxy's error": whole(HTML, b"502 Bad Gateway", b"text/html"),
    "a redirect": whole(b"", b"302 Found", b"text/html", b"Location: http://127.0.0.1:1/\r\n"),
    "broken gzip": whole(b"no gzip", more=b"Content-Encoding: gzip\r\n"),
    "an error that is none": whole(b'{"error": "text"}', b"400 Bad Request"),
    "a strange event": streamed(b'event: progress\ndata: {"fraction": "x"}\n\nevent: created\ndata: nonsense\n\n'),
    "a strange error": streamed(b"event: error\ndata: 5\n\n"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("call", CALLS)
def test_a_peer_that_fails_is_told_as_our_error(
    peer: Peer, client: Skerry, tmp_path: Path, fault: str, call: str
) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "f").write_bytes(b"x" * 10)
    peer.answers = [FAULTS[fault]]
    with pytest.raises(SkerryError):
        CALLS[call](client, tmp_path)
    assert not (tmp_path / "local").exists()


@pytest.mark.parametrize("call", CALLS)
def test_a_connection_that_is_reset_is_told_as_our_error(peer: Peer, client: Skerry, tmp_path: Path, call: str) -> None:
    (tmp_path / "up").mkdir()
    peer.answers, peer.reset = [OK + b"Content-Length: 1000\r\n\r\n{"], True
    with pytest.raises(SkerryError):
        CALLS[call](client, tmp_path)


def test_what_does_not_listen_and_what_does_not_answer_are_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        hasty = Skerry(f"http://127.0.0.1:{port}", "k", retries=0, timeout_s=0.1)
        with hasty, pytest.raises(Unreachable, match="in time"):
            hasty.me()
    with Skerry(f"http://127.0.0.1:{port}", "k", retries=0) as client, pytest.raises(Unreachable, match="reached"):
        client.me()
    with Skerry("http://no-such-host.invalid", "k", retries=0) as client, pytest.raises(Unreachable):
        client.me()


def test_plain_http_where_tls_is_asked_for_is_unreachable(peer: Peer) -> None:
    peer.answers = [whole(b"{}")]
    with Skerry(peer.url.replace("http:", "https:"), "k", retries=0) as client, pytest.raises(Unreachable):
        client.me()


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:80",
        "ftp://x",
        "http://",
        "http://[::1",
        "http://x:port",
        "http://x:99999",
        "http://a b",
        "http://\n",
    ],
)
def test_an_address_that_is_none_is_told(url: str) -> None:
    for kind in (Skerry, AsyncSkerry):
        with pytest.raises(Invalid):
            kind(url, "k")


@pytest.mark.parametrize("key", ["ключ", "a\nb", "\ud800", "a\0"])
def test_a_key_that_is_none_is_told_without_it(key: str) -> None:
    for kind in (Skerry, AsyncSkerry):
        with pytest.raises(Unauthorized) as caught:
            kind("http://127.0.0.1:1", key)
        assert key not in str(caught.value)


def test_settings_of_the_environment_that_cannot_be_used_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://x")
    with pytest.raises(Invalid, match="proxy"):
        Skerry("https://example.invalid", "k")
    monkeypatch.delenv("HTTPS_PROXY")
    monkeypatch.setenv("SSL_CERT_FILE", "/none")
    with pytest.raises(Invalid):
        Skerry("https://example.invalid", "k")


def test_a_client_that_was_closed_says_so() -> None:
    client = Skerry("http://127.0.0.1:1", "k")
    client.close()
    with pytest.raises(Invalid, match="closed"):
        client.me()


def test_secrets_in_a_broken_answer_are_not_told(peer: Peer, client: Skerry) -> None:
    peer.answers = [whole(json.dumps({**VIEW, "env": {"TOKEN": ["hush-hush"]}, "memory_mb": "hush-hush"}).encode())]
    with pytest.raises(ProtocolError) as caught:
        client.get("sbx_1")
    assert "hush-hush" not in str(caught.value) + str(caught.value.__cause__)


def test_output_that_is_no_base64_is_told(peer: Peer, client: Skerry) -> None:
    peer.answers = [whole(json.dumps({**COMMAND, "stdout_base64": "a"}).encode())]
    with pytest.raises(ProtocolError):
        box(client).commands.run("x")


SAFE = ["me", "list", "update", "set_env", "processes", "create", "run", "start", "files.write", "files.write_many"]
UNSAFE = ["keys.create", "shell", "run_code", "git"]


@pytest.mark.parametrize("call", [*SAFE, "files.touch", "files.upload_dir", "files.download_dir", "files.watch"])
def test_a_safe_call_is_made_again_where_the_connection_breaks(peer: Peer, tmp_path: Path, call: str) -> None:
    (tmp_path / "up").mkdir()
    peer.answers = [b"", b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n", whole(b"[]")]
    with Skerry(peer.url, "k", retries=2, timeout_s=0.5) as client, pytest.raises((ProtocolError, Unreachable)):
        CALLS[call](client, tmp_path)
    assert len(peer.requests) == 3


@pytest.mark.parametrize("call", UNSAFE)
def test_a_call_that_is_not_safe_is_made_once(peer: Peer, tmp_path: Path, call: str) -> None:
    peer.answers = [b"", whole(b"[]")]
    with Skerry(peer.url, "k", retries=2, timeout_s=0.5) as client, pytest.raises(Unreachable):
        CALLS[call](client, tmp_path)
    assert len(peer.requests) == 1


def test_a_whole_read_is_made_again_where_it_breaks_off(peer: Peer) -> None:
    peer.answers = [OK + b"Content-Length: 10\r\n\r\nhalf", whole(json.dumps(VIEW).encode()), whole(b"all of it!")]
    with Skerry(peer.url, "k", retries=2, timeout_s=0.5) as client, pytest.raises(ProtocolError):
        box(client).files.read("x")  # the second answer, to what asks why, is none of a file
    peer.requests.clear()
    entry = {"name": "/", "path": "/", "type": "dir", "size_bytes": 0, "mode": "0755", "uid": 0, "gid": 0}
    stat = whole(json.dumps({**entry, "modified_at": "2030-01-01T00:00:00Z"}).encode())
    peer.answers = [OK + b"Content-Length: 10\r\n\r\nhalf", stat, whole(b"all of it!")]
    with Skerry(peer.url, "k", retries=2, timeout_s=0.5) as client:
        assert box(client).files.read("x") == b"all of it!"


async def test_the_asynchronous_half_fails_the_same_way(peer: Peer) -> None:
    for fault, answer in FAULTS.items():
        peer.requests.clear()
        peer.answers = [answer]
        async with AsyncSkerry(peer.url, "k", retries=0, timeout_s=0.5) as client:
            for call in (client.me, client.list().all, client.templates.list):
                try:
                    await call()
                except SkerryError:
                    continue
                raise AssertionError(fault)
