"""What the supervisor does beside: systemd is told when the server is ready, once, and the log file is bounded."""

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from skerry import chores, instance
from skerry.config import Config


class _Answers(BaseHTTPRequestHandler):
    status = 503
    asked: ClassVar[list[str]]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def http() -> Iterator[type[_Answers]]:
    """A server that says how it is; `url` is where."""

    class Handler(_Answers):
        asked: ClassVar[list[str]] = []
        url = ""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    Handler.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield Handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(params=["path", "abstract"])
def manager_socket(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[socket.socket]:
    name = f"skerry-test-{os.getpid()}"
    bound, told = (str(tmp_path / "notify"),) * 2 if request.param == "path" else (f"\0{name}", f"@{name}")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(bound)
        listener.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", told)
        yield listener


def config_at(tmp_path: Path, url: str) -> Config:
    config = Config(home=tmp_path)
    config.run_dir.mkdir()
    instance.url_file(config).write_text(url + "\n")
    return config


def test_systemd_is_told_once_when_the_server_is_ready(
    tmp_path: Path, http: type[_Answers], manager_socket: socket.socket
) -> None:
    manager = chores.ServiceManager()
    assert "NOTIFY_SOCKET" not in os.environ, "sandboxes must never get it"
    chore = chores.chores(config_at(tmp_path, http.url), manager)  # pyright: ignore[reportAttributeAccessIssue]
    assert chore() == chores.LOOK_S
    with pytest.raises(BlockingIOError):
        manager_socket.recv(1024)
    http.status = 200
    assert chore() == chores.LOG_S
    assert manager_socket.recv(1024).split(b"\n")[0] == b"READY=1"
    chore()
    assert http.asked == ["/readyz", "/readyz"]
    manager.tell("STOPPING=1")
    assert manager_socket.recv(1024) == b"STOPPING=1"


def test_a_server_that_does_not_listen_is_not_ready(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    assert not chores.is_ready(config_at(tmp_path, f"http://127.0.0.1:{port}"))


def test_without_a_service_manager_nobody_is_asked_or_told(
    tmp_path: Path, http: type[_Answers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    manager = chores.ServiceManager()
    manager.tell("READY=1")
    assert chores.chores(config_at(tmp_path, http.url), manager)() == chores.LOG_S  # pyright: ignore[reportAttributeAccessIssue]
    assert http.asked == []


def test_a_service_manager_that_is_gone_disturbs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    chores.ServiceManager().tell("READY=1")
