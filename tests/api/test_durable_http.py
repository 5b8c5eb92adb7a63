"""Stop, resume, forks and idleness over HTTP: shapes, codes, and what a sandbox tells of itself."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx2
import pytest

from skerry.model.errors import TooBusy
from skerry.model.ids import SandboxId

from .conftest import Server
from .test_bad_input import refused

NOWHERE = "sbx_00000000000000000000"


@pytest.fixture
def box(http: httpx2.Client) -> str:
    return make(http, name="box", env={"TOKEN": "hush"})


def make(http: httpx2.Client, **members: Any) -> str:
    answer = http.post("/v1/sandboxes", json=members)
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def post(http: httpx2.Client, path: str, body: object | None = None, status: int = 200) -> Any:
    answer = http.post(f"/v1/sandboxes/{path}", json=body) if body is not None else http.post(f"/v1/sandboxes/{path}")
    assert answer.status_code == status, answer.text
    return answer.json()


def told(http: httpx2.Client, box: str) -> Any:
    return http.get(f"/v1/sandboxes/{box}").json()


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def write(http: httpx2.Client, box: str, path: str, data: bytes) -> None:
    assert http.put(f"/v1/sandboxes/{box}/files/raw", params={"path": path}, content=data).status_code == 200


def read(http: httpx2.Client, box: str, path: str) -> bytes:
    answer = http.get(f"/v1/sandboxes/{box}/files/raw", params={"path": path})
    assert answer.status_code == 200, answer.text
    return answer.content


def test_f8_f9_a_stopped_sandbox_comes_back_under_its_id_with_its_files(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    stopped = post(http, f"{box}/stop")
    assert (stopped["id"], stopped["status"], stopped["progress"]) == (box, "stopped", None)
    assert stopped["archive"]["size_bytes"] >= 4 and stopped["archive"]["entries"] >= 1
    assert (stopped["archive"]["skipped"], stopped["kept_awake_by"], stopped["reclaim_at"]) == (0, [], None)
    assert post(http, f"{box}/stop", {"force": True, "wait_seconds": 1})["status"] == "stopped"
    resumed = post(http, f"{box}/resume")
    assert (resumed["id"], resumed["status"], resumed["env"]) == (box, "ready", {"TOKEN": "hush"})
    assert post(http, f"{box}/resume")["status"] == "ready"
    assert read(http, box, "note.txt") == b"kept"


def test_f12_f13_the_next_use_brings_it_back(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    for use in (
        lambda: post(http, f"{box}/commands", {"command": "echo hi"})["stdout"] == "hi\n",
        lambda: read(http, box, "note.txt") == b"kept",
        lambda: http.get(f"/v1/sandboxes/{box}/files/list").json()["data"] != [],
        lambda: bool(post(http, f"{box}/sessions", status=201)["id"]),
        lambda: bool(post(http, f"{box}/terminals", {"argv": ["cat"]}, status=201)["id"]),
        lambda: post(http, f"{box}/code", {"language": "sh", "code": "echo hi"})["status"] == "completed",
    ):
        assert post(http, f"{box}/stop", {"force": True})["status"] == "stopped"
        assert use()
        assert told(http, box)["status"] in ("ready", "active")


def test_a_look_does_not_bring_it_back(http: httpx2.Client, box: str) -> None:
    command = post(http, f"{box}/commands", {"command": "echo kept"})["id"]
    post(http, f"{box}/stop")
    assert http.get(f"/v1/commands/{command}").json()["stdout"] == "kept\n"
    for path in ("", "/commands", "/sessions", "/startup", "/metrics"):
        assert http.get(f"/v1/sandboxes/{box}{path}").status_code == 200, path
    assert told(http, box)["status"] == "stopped"


def test_a_stop_that_is_not_waited_for_tells_how_far_it_is(
    http: httpx2.Client, box: str, held: Callable[[str], None], server: Server
) -> None:
    write(http, box, "a", b"x" * 1000)
    held("archive")
    assert post(http, f"{box}/stop", {"wait_seconds": 0})["status"] == "stopping"
    eventually(lambda: told(http, box)["progress"] is not None)
    progress = told(http, box)["progress"]
    assert (progress["phase"], progress["done_bytes"], progress["total_bytes"]) == ("archiving", 0, 1000)
    server.loop.call_soon_threadsafe(server.provider.let_go, "archive")
    eventually(lambda: told(http, box)["status"] == "stopped")
    assert told(http, box)["progress"] is None


def test_a_busy_sandbox_is_stopped_by_force_alone(http: httpx2.Client, box: str) -> None:
    command = post(http, f"{box}/commands", {"command": "sleep 60", "async": True}, 202)["id"]
    assert "force" in refused(http.post(f"/v1/sandboxes/{box}/stop"), 409, "sandbox_busy")
    assert told(http, box)["status"] == "active"
    assert post(http, f"{box}/stop", {"force": True})["status"] == "stopped"
    assert http.get(f"/v1/commands/{command}").json()["status"] == "failed"


def test_a_store_that_fails_is_told_and_nothing_is_lost(server: Server, http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    server.provider.storage.down = True
    stopping = post(http, f"{box}/stop")
    assert stopping["status"] == "stopping"
    assert "object store" in stopping["message"]
    assert read(http, box, "note.txt") == b"kept"
    server.provider.storage.down = False
    assert post(http, f"{box}/stop")["status"] == "stopped"
    assert told(http, box)["message"] is None


def test_an_archive_that_the_store_has_not_is_no_missing_sandbox(server: Server, http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    post(http, f"{box}/stop")
    server.provider.sandboxes.pop(SandboxId(box))
    elsewhere = {vault: dict(held) for vault, held in server.provider.storage.archives.items()}
    for held in server.provider.storage.archives.values():
        held.clear()
    for answer in (
        http.post("/v1/sandboxes", json={"restore_from": box}),
        http.post(f"/v1/sandboxes/{box}/fork"),
        http.post(f"/v1/sandboxes/{box}/resume"),
    ):
        assert answer.status_code == 409, answer.text
        assert answer.json()["error"]["code"] in ("archive_missing", "files_lost")
    for vault, held in elsewhere.items():
        server.provider.storage.archives[vault] |= held
    assert post(http, f"{box}/resume")["status"] == "ready"
    assert read(http, box, "note.txt") == b"kept"


def test_f11_a_destroyed_sandbox_is_neither_stopped_nor_resumed_nor_copied(http: httpx2.Client, box: str) -> None:
    post(http, f"{box}/stop")
    assert http.delete(f"/v1/sandboxes/{box}").status_code == 204
    for verb in ("stop", "resume", "fork", "snapshots"):
        refused(http.post(f"/v1/sandboxes/{box}/{verb}"), 409, "sandbox_destroyed")


@pytest.mark.parametrize(
    ("path", "body", "code", "field"),
    [
        ("stop", {"forced": True}, "unknown_field", "forced"),
        ("stop", {"force": "yes"}, "invalid", "force"),
        ("stop", {"wait_seconds": 601}, "invalid", "wait_seconds"),
        ("stop", {"wait_seconds": -1}, "invalid", "wait_seconds"),
        ("stop", [], "invalid", "body"),
        ("fork", {"count": 0}, "invalid", "count"),
        ("fork", {"count": 101}, "invalid", "count"),
        ("fork", {"count": "2"}, "invalid", "count"),
        ("fork", {"name": "a\nb"}, "invalid", "name"),
        ("fork", {"names": "a"}, "unknown_field", "names"),
        ("fork", {"metadata": {"a": "x" * 70_000}}, "invalid", "metadata"),
        ("snapshots", {"label": "a"}, "unknown_field", "label"),
        ("snapshots", {"name": ""}, "invalid", "name"),
        ("snapshots", {"name": "\x1b[2J"}, "invalid", "name"),
    ],
)
def test_x4_a_wrong_body_names_the_field_and_does_nothing(
    server: Server, http: httpx2.Client, box: str, path: str, body: object, code: str, field: str
) -> None:
    refused(http.post(f"/v1/sandboxes/{box}/{path}", json=body), 400, code, field)
    assert told(http, box)["status"] == "ready"
    assert (server.provider.created, http.get("/v1/snapshots").json()["data"]) == (1, [])


def test_a_fork_is_one_sandbox_and_a_list_where_a_count_is_sent(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"theirs")
    copy = post(http, f"{box}/fork", {"metadata": {"n": 1}}, 201)
    assert copy["id"] != box
    assert (copy["status"], copy["source"], copy["metadata"], copy["name"]) == ("ready", box, {"n": 1}, None)
    assert (copy["env"], copy["template"]) == ({"TOKEN": "hush"}, told(http, box)["template"])
    write(http, copy["id"], "note.txt", b"mine")
    assert read(http, box, "note.txt") == b"theirs"
    assert post(http, f"{box}/fork", status=201)["status"] == "ready"
    (one,) = post(http, f"{box}/fork", {"count": 1, "name": "copy"}, 201)["data"]
    assert one["name"] == "copy"
    three = post(http, f"{box}/fork", {"count": 3}, 201)["data"]
    assert len({each["id"] for each in three}) == 3
    assert all(read(http, each["id"], "note.txt") == b"theirs" for each in three)


def test_each_fork_has_a_result_of_its_own(server: Server, http: httpx2.Client, box: str) -> None:
    server.provider.faults["create"] = TooBusy("no room for another one")
    failed = post(http, f"{box}/fork", {"count": 2}, 201)["data"]
    assert [one["error"]["code"] for one in failed] == ["too_busy"] * 2
    assert "no room" in failed[0]["error"]["message"]
    refused(http.post(f"/v1/sandboxes/{box}/fork"), 429, "too_busy")


def test_a_fork_that_is_sent_again_is_made_once(server: Server, http: httpx2.Client, box: str) -> None:
    headers = {"Idempotency-Key": "fork-1"}
    first = http.post(f"/v1/sandboxes/{box}/fork", json={"count": 2}, headers=headers).json()["data"]
    second = http.post(f"/v1/sandboxes/{box}/fork", json={"count": 2}, headers=headers).json()["data"]
    assert [one["id"] for one in first] == [one["id"] for one in second]
    assert server.provider.created == 3
    refused(http.post(f"/v1/sandboxes/{box}/fork", json={"count": 3}, headers=headers), 409, "idempotency_mismatch")


def test_f23_a_sandbox_begins_with_another_ones_files(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"seed")
    assert read(http, make(http, restore_from=box), "note.txt") == b"seed"
    post(http, f"{box}/stop")
    seeded = http.post("/v1/sandboxes", json={"restore_from": box, "template": "node"}).json()
    assert (seeded["template"], seeded["source"], seeded["env"]) == ("node", box, {})
    assert read(http, seeded["id"], "note.txt") == b"seed"
    assert told(http, box)["status"] == "stopped"


def test_f23_what_a_sandbox_begins_with_is_one_thing_and_there(server: Server, http: httpx2.Client, box: str) -> None:
    made = server.provider.created
    answer = http.post("/v1/sandboxes", json={"restore_from": box, "snapshot_id": "snap_00000000000000000000"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid"), answer.text
    for body in ({"restore_from": NOWHERE}, {"snapshot_id": "snap_00000000000000000000"}):
        answer = http.post("/v1/sandboxes", json=body)
        assert answer.status_code in (400, 404), answer.text
        assert answer.json()["error"]["field"] in body
    assert server.provider.created == made


def test_f18_f19_a_sandbox_says_when_it_is_reclaimed_and_what_keeps_it(http: httpx2.Client) -> None:
    box = make(http, idle_timeout_seconds=600)
    shown = told(http, box)
    assert (shown["idle_timeout_seconds"], shown["kept_awake_by"]) == (600, [])
    at = datetime.fromisoformat(shown["reclaim_at"])
    assert timedelta(seconds=590) < at - datetime.now(UTC) <= timedelta(seconds=601)
    command = post(http, f"{box}/commands", {"command": "sleep 60", "async": True}, 202)["id"]
    for seen in (told(http, box), *http.get("/v1/sandboxes").json()["data"]):
        assert (seen["status"], seen["reclaim_at"], seen["kept_awake_by"]) == ("active", None, ["command"])
    http.post(f"/v1/commands/{command}/kill")
    eventually(lambda: told(http, box)["reclaim_at"] is not None)
    never = told(http, make(http, idle_timeout_seconds=0))
    assert (never["idle_timeout_seconds"], never["reclaim_at"], never["kept_awake_by"]) == (0, None, [])


@pytest.mark.parametrize("seconds", [-1, 31_536_001, "60", 1.5])
def test_an_idle_timeout_that_is_none_is_refused(http: httpx2.Client, seconds: object) -> None:
    refused(http.post("/v1/sandboxes", json={"idle_timeout_seconds": seconds}), 400, "invalid", "idle_timeout_seconds")


def test_f6_lists_are_asked_for_by_the_new_states(http: httpx2.Client, held: Callable[[str], None]) -> None:
    stopped, stopping, ready = make(http), make(http), make(http)
    post(http, f"{stopped}/stop")
    held("archive")
    post(http, f"{stopping}/stop", {"wait_seconds": 0})
    for status, box in (("stopped", stopped), ("stopping", stopping), ("ready", ready)):
        assert [one["id"] for one in http.get(f"/v1/sandboxes?status={status}").json()["data"]] == [box]
    assert len(http.get("/v1/sandboxes?status=stopped&status=stopping").json()["data"]) == 2
    assert http.get("/v1/sandboxes?status=resuming").json()["data"] == []
    assert len(http.get("/v1/sandboxes").json()["data"]) == 3
    usage = http.get("/v1/usage").json()
    assert (usage["sandboxes"]["stopped"], usage["sandboxes"]["stopping"], usage["sandboxes"]["ready"]) == (1, 1, 1)
    assert usage["memory_mb"] == told(http, ready)["memory_mb"], "what is stopped has no memory"


def test_a_list_costs_the_same_whatever_its_length(server: Server, http: httpx2.Client) -> None:
    def asked() -> int:
        """Statements of a list. The reconciler's come between: the fewest of several are the list's own."""
        counts: list[int] = []
        for _ in range(8):
            before = server.statements.count
            assert http.get("/v1/sandboxes").status_code == 200
            counts.append(server.statements.count - before)
        return min(counts)

    make(http), make(http)
    two = asked()
    for _ in range(6):
        make(http)
    assert asked() == two > 0


def test_where_files_lie_is_told(http: httpx2.Client) -> None:
    assert http.get("/v1/capabilities").json()["storage"] == "memory://"


def test_f18_without_storage_nothing_is_stopped(bare: httpx2.Client) -> None:
    box = make(bare)
    refused(bare.post(f"/v1/sandboxes/{box}/stop"), 409, "storage_disabled")
    assert told(bare, box)["status"] == "ready"


def test_stop_and_resume_at_once_leave_no_state_stuck(server: Server, http: httpx2.Client, box: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    def one(verb: str) -> int:
        return http.post(f"/v1/sandboxes/{box}/{verb}").status_code

    with ThreadPoolExecutor(8) as pool:
        codes = set(pool.map(one, ["stop", "resume"] * 8))
    assert codes <= {200, 409, 503}, codes
    eventually(lambda: told(http, box)["status"] in ("ready", "stopped"))
    assert SandboxId(box) in server.provider.sandboxes
