"""Directories over HTTP: tar both ways, many files in one call, watching, touching; and what runs inside."""

import base64
import io
import tarfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime

import httpx2
import pytest

from skerry.model.ids import SandboxId
from skerry.testing.guest_suite import tar

from .conftest import Server


@pytest.fixture
def sandbox(http: httpx2.Client) -> str:
    return http.post("/v1/sandboxes", json={}).json()["id"]


@pytest.fixture
def base(sandbox: str) -> str:
    return f"/v1/sandboxes/{sandbox}/files"


def names(http: httpx2.Client, base: str, path: str) -> list[str]:
    return [entry["name"] for entry in http.get(f"{base}/list", params={"path": path}).json()["data"]]


def test_a_directory_goes_up_and_comes_down_as_tar(http: httpx2.Client, base: str) -> None:
    up = tar(("src", None), ("src/main.py", b"print(1)\n"), ("empty", None))
    answer = http.put(f"{base}/tar", params={"path": "project"}, content=up)
    assert answer.json() == {"count": 3, "size_bytes": 9, "skipped": [], "skipped_count": 0}
    answer = http.get(f"{base}/tar", params={"path": "/workspace/project"})
    assert answer.headers["content-type"] == "application/x-tar"
    assert answer.headers["content-disposition"] == "attachment"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert set(archive.getnames()) == {"src", "src/main.py", "empty", "."}


def test_the_workspace_is_the_directory_unless_another_is_named(http: httpx2.Client, base: str) -> None:
    http.put(f"{base}/tar", content=tar(("here", b"x"))).raise_for_status()
    assert names(http, base, "/workspace") == ["here"]
    with tarfile.open(fileobj=io.BytesIO(http.get(f"{base}/tar").content)) as archive:
        assert "here" in archive.getnames()


def test_a_tar_needs_no_json_content_type_and_may_come_without_a_length(http: httpx2.Client, base: str) -> None:
    up = tar(("a", b"x" * 100_000))

    def chunks() -> Iterator[bytes]:
        for start in range(0, len(up), 1000):
            yield up[start : start + 1000]

    answer = http.put(f"{base}/tar", content=chunks(), headers={"Content-Type": "application/x-tar"})
    assert answer.json()["size_bytes"] == 100_000


def test_hostile_entries_are_answered_with_a_reason_each(http: httpx2.Client, base: str) -> None:
    up = tar(("/etc/evil", b"x"), ("../evil", b"x"), ("fine", b"x"))
    told = http.put(f"{base}/tar", params={"path": "in"}, content=up).json()
    assert [(each["path"], bool(each["reason"])) for each in told["skipped"]] == [
        ("/etc/evil", True),
        ("../evil", True),
    ]
    assert (told["count"], told["skipped_count"]) == (1, 2)


def test_what_is_no_tar_is_told_as_invalid(http: httpx2.Client, base: str) -> None:
    answer = http.put(f"{base}/tar", content=b"no tar" * 1000)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid")


def test_a_tar_over_the_upload_limit_is_too_large(http: httpx2.Client, base: str) -> None:
    answer = http.put(f"{base}/tar", content=tar(("big", bytes(9 << 20))))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "too_large")


def test_what_is_no_directory_is_told_before_the_stream(http: httpx2.Client, base: str) -> None:
    http.put(f"{base}/raw", params={"path": "file"}, content=b"x")
    assert http.get(f"{base}/tar", params={"path": "none"}).status_code == 404
    answer = http.get(f"{base}/tar", params={"path": "file"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "not_a_directory")


def test_500_files_of_4_kb_go_up_in_one_call(http: httpx2.Client, base: str) -> None:
    content = base64.b64encode(bytes(4096)).decode()
    files = [{"path": f"d{n % 10}/{n}", "content_base64": content, "mode": "0600"} for n in range(500)]
    told = http.put(f"{base}/batch", json={"path": "many", "files": files}).json()
    assert told == {"count": 500, "size_bytes": 500 * 4096, "skipped": [], "skipped_count": 0}
    assert len(names(http, base, "many/d3")) == 50
    assert http.get(f"{base}/stat", params={"path": "many/d3/3"}).json()["mode"] == "0600"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"files": [{"path": "/etc/x", "content_base64": ""}]}, "files.0.path"),
        (
            {"files": [{"path": "ok", "content_base64": ""}, {"path": "a/../../x", "content_base64": ""}]},
            "files.1.path",
        ),
        ({"files": [{"path": "a", "content_base64": "%"}]}, "files.0.content_base64"),
        ({"files": [{"path": "a", "content_base64": "", "mode": "999"}]}, "files.0.mode"),
        ({"files": [{"path": "x", "content_base64": ""}] * 10_001}, "files"),
        ({}, "files"),
    ],
)
def test_a_wrong_batch_writes_nothing_and_names_the_field(
    http: httpx2.Client, base: str, body: dict[str, object], field: str
) -> None:
    answer = http.put(f"{base}/batch", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field)
    assert names(http, base, "/workspace") == []


def test_touching_makes_a_file_and_sets_its_time(http: httpx2.Client, base: str) -> None:
    made = http.post(f"{base}/touch", json={"path": "new/file"}).json()
    assert (made["size_bytes"], made["type"]) == (0, "file")
    body = {"path": "new/file", "modified_at": "2020-01-02T03:04:05.000006+01:00", "mode": "0600"}
    told = http.post(f"{base}/touch", json=body).json()
    assert (told["modified_at"], told["mode"]) == ("2020-01-02T02:04:05.000006+00:00", "0600")
    assert http.post(f"{base}/touch", json={"path": "none", "create": False}).status_code == 404
    assert http.post(f"{base}/touch", json={"path": "x", "modified_at": "2020-01-02T03:04:05"}).status_code == 400


def read_events(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    name = ""
    for line in lines:
        if line.startswith("event: "):
            name = line[7:]
        elif line.startswith("data: "):
            yield name, line[6:]


def test_a_watch_tells_changes_as_events_and_ends_with_the_sandbox(
    server: Server, http: httpx2.Client, base: str, sandbox: str
) -> None:
    with http.stream("GET", f"{base}/watch", params={"path": "/workspace", "recursive": "true"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = read_events(answer.iter_lines())
        assert next(events) == ("watching", "{}")
        http.post(f"{base}/mkdir", json={"path": "sub"}).raise_for_status()
        assert next(events) == ("created", '{"path": "/workspace/sub"}')
        http.post(f"{base}/move", json={"source": "sub", "target": "sup"}).raise_for_status()
        assert next(events) == ("moved_from", '{"path": "/workspace/sub"}')
        assert next(events) == ("moved_to", '{"path": "/workspace/sup"}')
        http.delete(f"{base}", params={"path": "sup"}).raise_for_status()
        assert next(events) == ("removed", '{"path": "/workspace/sup"}')
        server.call(server.provider.guest(SandboxId(sandbox)).die())
        name, data = next(events)
        assert name == "error" and "sandbox_gone" in data
        assert list(events) == []


def test_a_watch_of_nothing_is_not_found(http: httpx2.Client, base: str) -> None:
    assert http.get(f"{base}/watch", params={"path": "none"}).status_code == 404


def test_a_watcher_that_leaves_is_forgotten(server: Server, http: httpx2.Client, base: str, sandbox: str) -> None:
    watchers = server.provider.guest(SandboxId(sandbox)).files.watchers
    with http.stream("GET", f"{base}/watch") as answer:
        events = read_events(answer.iter_lines())  # held: dropping it would end the connection
        assert next(events)[0] == "watching"
        assert len(watchers) == 1
        assert server.deps.uses.in_use(SandboxId(sandbox))
    deadline = time.monotonic() + 10
    while watchers or server.deps.uses.in_use(SandboxId(sandbox)):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_f19_a_sandbox_is_in_use_while_files_go_up_or_come_down(
    server: Server, http: httpx2.Client, base: str, sandbox: str
) -> None:
    def pieces() -> Iterator[bytes]:
        yield bytes(300_000)
        deadline = time.monotonic() + 10
        while not server.deps.uses.in_use(SandboxId(sandbox)):
            assert time.monotonic() < deadline
            threading.Event().wait(0.01)
        yield bytes(300_000)

    raw = f"{base}/raw"
    assert http.put(raw, params={"path": "large"}, content=pieces()).status_code == 200
    assert not server.deps.uses.in_use(SandboxId(sandbox))
    for path, url in (("large", raw), (".", f"{base}/tar")):
        with http.stream("GET", url, params={"path": path}) as answer:
            assert answer.status_code == 200
            for _ in answer.iter_raw():
                pass
    deadline = time.monotonic() + 10
    while server.deps.uses.in_use(SandboxId(sandbox)):
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_processes_and_ports_are_listed(server: Server, http: httpx2.Client, sandbox: str) -> None:
    started = http.post(f"/v1/sandboxes/{sandbox}/commands", json={"command": "sleep 60", "async": True}).json()
    [process] = http.get(f"/v1/sandboxes/{sandbox}/processes").json()["data"]
    assert process["command_id"] == started["id"] and process["state"] == "sleeping"
    assert datetime.fromisoformat(process["started_at"]) <= datetime.now(UTC)
    server.provider.guest(SandboxId(sandbox)).serve(8080, _nothing)
    [port] = http.get(f"/v1/sandboxes/{sandbox}/ports").json()["data"]
    assert (port["port"], port["address"], port["family"]) == (8080, "127.0.0.1", "ipv4")


async def _nothing(_stream: object) -> None: ...
