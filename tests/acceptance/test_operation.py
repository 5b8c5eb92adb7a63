"""Operating a real server: one request followed through its logs, its metrics, a log that is turned over, systemd."""

import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from acceptance.marks import on_both
from acceptance.servers import Server, eventually

MIB = 1 << 20


@pytest.fixture
def http(server: Server) -> Iterator[httpx2.Client]:
    headers = {"Authorization": f"Bearer {server.key}"}
    with httpx2.Client(base_url=server.url, headers=headers, timeout=60) as client:
        yield client


def lines_of(server: Server, request_id: str) -> list[dict[str, Any]]:
    found = [line for line in server.log.read_text(errors="replace").splitlines() if request_id in line]
    return [json.loads(line) for line in found]


def test_one_request_is_followed_from_the_api_into_the_node(server: Server, http: httpx2.Client) -> None:
    request_id = f"trace-{os.urandom(4).hex()}"
    made = http.post("/v1/sandboxes", json={}, headers={"X-Request-Id": request_id})
    assert made.headers["X-Request-Id"] == request_id
    sandbox = made.json()["id"]
    http.delete(f"/v1/sandboxes/{sandbox}", headers={"X-Request-Id": f"{request_id}-end"})
    eventually("both are logged", lambda: len(lines_of(server, f"{request_id}-end")) == 2)
    first = {line["event"]: line for line in lines_of(server, request_id) if line["request_id"] == request_id}
    assert set(first) == {"a sandbox was made", "request"}
    assert first["a sandbox was made"]["sandbox_id"] == sandbox
    assert first["a sandbox was made"]["op"] == "create"  # the node's own line
    assert (first["request"]["route"], first["request"]["status"]) == ("/v1/sandboxes", 201)
    assert {line["event"] for line in lines_of(server, f"{request_id}-end")} == {"a sandbox was destroyed", "request"}


@on_both
def test_f17_what_a_sandbox_uses_is_told(server: Server, http: httpx2.Client) -> None:
    path = f"/v1/sandboxes/{http.post('/v1/sandboxes', json={'memory_mb': 256}).json()['id']}"
    work = "import hashlib; b = bytearray(60 << 20); [hashlib.sha256(b) for _ in range(4)]; input()"
    running = http.post(f"{path}/commands", json={"argv": ["python3", "-c", work], "async": True, "stdin": ""})
    assert running.status_code in (200, 201, 202), running.text

    def busy() -> bool:
        told = http.get(f"{path}/metrics").json()
        assert told["limits"]["memory_bytes"] == 256 * MIB
        now = told["now"]
        assert 0 < now["memory_bytes"] + now["memory_cache_bytes"] <= 256 * MIB
        return now["cpu_ms"] > 100 and now["processes"] > 0

    eventually("its work is counted", busy, within_s=30)
    eventually("it is sampled", lambda: http.get(f"{path}/metrics").json()["history"], within_s=30)
    http.delete(path)


def test_prometheus_finds_the_whole_server(server: Server, http: httpx2.Client) -> None:
    http.get("/v1/me")
    text = http.get("/metrics").text
    assert 'skerry_up{part="node"} 1.0' in text and 'skerry_up{part="store"} 1.0' in text
    assert 'route="/v1/me"' in text and "skerry_pool_bytes" in text and "process_resident_memory_bytes" in text
    assert httpx2.get(f"{server.url}/metrics").status_code == 401
    pid = server.kill("node")
    server.restarted("node", pid)
    assert httpx2.get(f"{server.url}/readyz").json()["status"] == "ready"


def environ_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_systemd_is_told_when_it_is_ready_and_no_sandbox_gets_its_socket(server: Server, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        server.stop()
        server.extra_env["NOTIFY_SOCKET"] = str(tmp_path / "notify")
        try:
            began = time.monotonic()
            server.start()
            ready = manager.recv(4096).decode()
            assert ready.startswith("READY=1\nSTATUS=Listening at http://") and time.monotonic() - began < 60
            for part in ("api", "node"):
                assert b"NOTIFY_SOCKET" not in environ_of(server.pid(part))
            with server.client() as client, client.create("python") as box:
                assert "NOTIFY" not in box.commands.run("env; cat /proc/1/environ 2>/dev/null; true").stdout
            server.stop()
            assert manager.recv(4096) == b"STOPPING=1"
        finally:
            server.stop()
            server.extra_env.clear()
            server.start()


def test_the_log_of_a_server_in_the_background_is_bounded(server: Server) -> None:
    """As `skerry up` starts it: with its log file as its standard error."""
    server.stop()
    log, kept = server.log, server.log
    try:
        server.log = log = server.config.home / "log" / "serve.log"
        log.parent.mkdir(exist_ok=True)
        earlier = log.with_suffix(".log.1")
        earlier.unlink(missing_ok=True)
        log.write_bytes((b"x" * 99 + b"\n") * 11_000)
        server.extra_env["SKERRY_LOG_MB"] = "1"
        server.start()
        eventually("it is turned over", earlier.exists, within_s=30)
        assert earlier.stat().st_size > MIB and log.stat().st_size < MIB
        size = log.stat().st_size
        httpx2.get(f"{server.url}/v1/me")
        eventually("all parts go on in it", lambda: log.stat().st_size > size)
        assert log.read_bytes()[:1] in (b"{", b"")
    finally:
        server.stop()
        server.log = kept
        server.extra_env.clear()
        server.start()
