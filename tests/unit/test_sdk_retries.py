"""The client over a server that fails on purpose: what is sent again, and under which key."""

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from skerry.model.errors import LimitExceeded, ProtocolError, Unavailable
from skerry.sdk import Skerry

VIEW = {
    "id": "sbx_00000000000000000000",
    "name": None,
    "status": "ready",
    "template": "python",
    "runtime": "crun",
    "memory_mb": 1,
    "cpu_millis": 1,
    "disk_mb": 1,
    "timeout_seconds": 1,
    "network_mode": "none",
    "env": {},
    "capabilities": [],
    "metadata": {},
    "created_at": "2030-01-01T00:00:00Z",
    "updated_at": "2030-01-01T00:00:00Z",
}
BREAK = 0  # the connection is closed after the request was read


class Script(ThreadingHTTPServer):
    """Answers with one of `statuses` after the other, then with 201. `keys` and `times` are of the requests seen."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.statuses: list[int] = []
        self.retry_after: str | None = None
        self.keys: list[str | None] = []
        self.times: list[float] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        script = self.server
        assert isinstance(script, Script)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        script.keys.append(self.headers.get("Idempotency-Key"))
        script.times.append(time.monotonic())
        status = script.statuses.pop(0) if script.statuses else 201
        if status == BREAK:
            self.close_connection = True
            return
        body = json.dumps(VIEW if status == 201 else {"error": {"code": "x", "message": "why"}}).encode()
        self.send_response(status)
        if script.retry_after is not None and status >= 400:
            self.send_header("Retry-After", script.retry_after)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def script() -> Iterator[Script]:
    with Script() as script:
        serving = threading.Thread(target=script.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        yield script
        script.shutdown()
        serving.join(10)


@pytest.fixture
def client(script: Script) -> Iterator[Skerry]:
    with Skerry(f"http://127.0.0.1:{script.server_address[1]}", "key") as client:
        yield client


@pytest.mark.parametrize("failures", [[BREAK], [502, 503, 504], [BREAK, 503, 429]])
def test_a_create_is_sent_again_under_its_first_key(script: Script, client: Skerry, failures: list[int]) -> None:
    script.statuses = list(failures)
    script.retry_after = "0"
    assert client.create().id == VIEW["id"]
    assert len(script.keys) == len(failures) + 1
    assert len(set(script.keys)) == 1 and script.keys[0]


def test_each_call_has_a_key_of_its_own(script: Script, client: Skerry) -> None:
    box = client.create()
    client.create()
    for _ in range(2):
        with pytest.raises(ProtocolError):
            box.commands.start("true")  # what the script answers is no command
    assert None not in script.keys
    assert len(set(script.keys)) == 4


def test_it_waits_as_long_as_the_server_asks_for(script: Script, client: Skerry) -> None:
    script.statuses, script.retry_after = [503], "0.7"
    client.create()
    first, second = script.times
    assert 0.7 <= second - first < 2


def test_retries_have_an_end(script: Script, client: Skerry) -> None:
    script.statuses, script.retry_after = [503] * 10, "0"
    with pytest.raises(Unavailable):
        client.create()
    assert len(script.keys) == 4


def test_what_the_server_refuses_is_not_asked_again(script: Script, client: Skerry) -> None:
    script.statuses = [402]
    with pytest.raises(LimitExceeded):
        client.create()
    assert len(script.keys) == 1


def test_a_call_that_the_server_does_not_know_again_is_not_repeated(script: Script, client: Skerry) -> None:
    box = client.create()
    script.statuses = [503] * 10
    with pytest.raises(Unavailable):
        box.files.move("x", "y")
    assert script.keys[1:] == [None]
