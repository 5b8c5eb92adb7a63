"""A server that answers by a script: a client's waits are tested without a sandbox, and without its time."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

BOX = "sbx_00000000000000000000"
VIEW: dict[str, Any] = {
    "id": BOX,
    "name": "box",
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
Answer = tuple[int, dict[str, Any]]


def view(**members: object) -> Answer:
    return 200, VIEW | members


def refusal(status: int, code: str, message: str) -> Answer:
    return status, {"error": {"code": code, "message": message}}


class ScriptedApi(ThreadingHTTPServer):
    """`answers` to each (method, path), one after the other; the last one stays. `asked` has requests with bodies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[tuple[str, str], list[Answer]] = {}
        self.asked: list[tuple[str, str, Any]] = []
        self.keys: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error."""

    def says(self, method: str, path: str, *answers: Answer) -> None:
        self.answers[method, path] = list(answers)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        api = self.server
        assert isinstance(api, ScriptedApi)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = self.path.partition("?")[0]
        api.asked.append((self.command, self.path, json.loads(body) if body else None))
        api.keys.append(self.headers.get("Idempotency-Key"))
        script = api.answers.get((self.command, path)) or [refusal(404, "not_found", f"nothing at {path}")]
        status, told = script.pop(0) if len(script) > 1 else script[0]
        name = parse_qs(self.path.partition("?")[2]).get("name")
        if name and "data" in told:
            told = {**told, "data": [one for one in told["data"] if one["name"] == name[0]]}
        content = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@contextmanager
def scripted() -> Iterator[ScriptedApi]:
    with ScriptedApi() as api:
        thread = threading.Thread(target=api.serve_forever)
        thread.start()
        try:
            yield api
        finally:
            api.shutdown()
            thread.join()
