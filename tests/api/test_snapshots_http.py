"""Snapshots over HTTP: made, found, listed, begun from, deleted."""

from collections.abc import Callable

import httpx2
import pytest

from .conftest import Server
from .test_bad_input import refused
from .test_durable_http import eventually, make, post, read, told, write

SNAPSHOT = "snap_00000000000000000000"


@pytest.fixture
def box(http: httpx2.Client) -> str:
    wanted = {"template": "node", "memory_mb": 256, "env": {"TOKEN": "hush"}, "network_mode": "none"}
    return make(http, **wanted, timeout_seconds=9, startup_command="true", idle_timeout_seconds=60)


def test_f26_a_snapshot_has_files_and_configuration_and_outlives_its_source(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    made = http.post(f"/v1/sandboxes/{box}/snapshots", json={"name": "base"})
    assert (made.status_code, made.headers["Location"]) == (201, f"/v1/snapshots/{made.json()['id']}")
    snapshot = made.json()
    assert (snapshot["name"], snapshot["status"], snapshot["source_sandbox_id"]) == ("base", "ready", box)
    assert (snapshot["template"], snapshot["memory_mb"], snapshot["timeout_seconds"]) == ("node", 256, 9)
    assert (snapshot["network_mode"], snapshot["startup_command"], snapshot["idle_timeout_seconds"]) == (
        *("none", "true", 60),
    )
    assert snapshot["env"] == {"TOKEN": "hush"}
    assert http.delete(f"/v1/sandboxes/{box}").status_code == 204
    for _ in range(2):
        view = http.post("/v1/sandboxes", json={"template": "blank", "snapshot_id": snapshot["id"]}).json()
        assert (view["template"], view["memory_mb"], view["env"]) == ("node", 256, {"TOKEN": "hush"})
        assert (view["source"], view["startup_command"]) == (snapshot["id"], "true")
        assert read(http, view["id"], "note.txt") == b"kept"


def test_what_is_asked_for_goes_before_a_snapshots_configuration(http: httpx2.Client, box: str) -> None:
    snapshot = post(http, f"{box}/snapshots", status=201)["id"]
    view = http.post("/v1/sandboxes", json={"snapshot_id": snapshot, "memory_mb": 128, "env": {"A": "1"}}).json()
    assert (view["memory_mb"], view["env"], view["timeout_seconds"]) == (128, {"A": "1"}, 9)


def test_a_snapshot_is_taken_of_a_stopped_sandbox_and_leaves_it_so(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    post(http, f"{box}/stop")
    snapshot = post(http, f"{box}/snapshots", {}, 201)
    assert (snapshot["name"], told(http, box)["status"]) == ("", "stopped")
    assert read(http, make(http, snapshot_id=snapshot["id"]), "note.txt") == b"kept"


def test_a_snapshot_says_when_the_object_store_has_it(
    server: Server, http: httpx2.Client, box: str, held: Callable[[str], None]
) -> None:
    write(http, box, "a", b"x" * 1000)
    held("archive")
    snapshot = post(http, f"{box}/snapshots", status=201)
    path = f"/v1/snapshots/{snapshot['id']}"
    assert (snapshot["archived"], snapshot["stored_bytes"]) == (False, None)
    assert read(http, make(http, snapshot_id=snapshot["id"]), "a") == b"x" * 1000
    server.loop.call_soon_threadsafe(server.provider.let_go, "archive")
    eventually(lambda: http.get(path).json()["archived"])
    shown = http.get(path).json()
    assert (shown["detail"], shown["size_bytes"], shown["stored_bytes"]) == (None, 1000, 1000)


def test_a_snapshot_says_what_keeps_it_from_the_object_store(server: Server, http: httpx2.Client, box: str) -> None:
    server.provider.storage.down = True
    path = f"/v1/snapshots/{post(http, f'{box}/snapshots', status=201)['id']}"
    eventually(lambda: http.get(path).json()["detail"] is not None)
    assert "object store" in http.get(path).json()["detail"]
    assert http.get(path).json()["archived"] is False


def test_a_list_comes_in_pages_and_is_filtered_and_shows_no_secrets(http: httpx2.Client, box: str) -> None:
    other = make(http)
    made = [post(http, f"{at}/snapshots", {"name": f"n{n % 2}"}, 201)["id"] for n, at in enumerate([box, other] * 2)]
    first = http.get("/v1/snapshots?limit=3").json()
    second = http.get("/v1/snapshots", params={"limit": 3, "before": first["next"]}).json()
    assert [one["id"] for one in first["data"] + second["data"]] == list(reversed(made))
    assert second["next"] is None
    assert {one["env"].get("TOKEN") for one in first["data"]} == {"[redacted]", None}
    mine = http.get("/v1/snapshots", params={"source_sandbox_id": box}).json()["data"]
    assert [one["id"] for one in mine] == [made[2], made[0]]
    assert [one["id"] for one in http.get("/v1/snapshots?name=n1").json()["data"]] == [made[3], made[1]]
    assert http.get("/v1/snapshots?name=none").json() == {"data": [], "next": None}
    refused(http.get("/v1/snapshots?before=snap_1"), 400, "invalid", "before")
    refused(http.get("/v1/snapshots?names=n1"), 400, "unknown_field", "names")


def test_what_is_deleted_is_gone_and_what_was_made_from_it_stays(http: httpx2.Client, box: str) -> None:
    write(http, box, "note.txt", b"kept")
    snapshot = post(http, f"{box}/snapshots", status=201)["id"]
    copy = make(http, snapshot_id=snapshot)
    assert http.delete(f"/v1/snapshots/{snapshot}").status_code == 204
    refused(http.get(f"/v1/snapshots/{snapshot}"), 404, "not_found")
    refused(http.delete(f"/v1/snapshots/{snapshot}"), 404, "not_found")
    assert http.get("/v1/snapshots").json()["data"] == []
    assert read(http, copy, "note.txt") == b"kept"
    answer = http.post("/v1/sandboxes", json={"snapshot_id": snapshot})
    assert answer.status_code in (400, 404) and answer.json()["error"]["field"] == "snapshot_id"


def test_a_snapshot_that_is_sent_again_is_made_once(http: httpx2.Client, box: str) -> None:
    headers = {"Idempotency-Key": "snap-1"}
    made = [http.post(f"/v1/sandboxes/{box}/snapshots", json={"name": "a"}, headers=headers) for _ in range(2)]
    assert [one.status_code for one in made] == [201, 201]
    assert made[0].json()["id"] == made[1].json()["id"]
    assert len(http.get("/v1/snapshots").json()["data"]) == 1
    again = http.post(f"/v1/sandboxes/{box}/snapshots", json={"name": "b"}, headers=headers)
    refused(again, 409, "idempotency_mismatch")


@pytest.mark.parametrize("id", [SNAPSHOT, "snap_1", "nonsense", "sbx_00000000000000000000"])
def test_what_is_no_snapshot_is_not_found(http: httpx2.Client, id: str) -> None:
    for method in ("GET", "DELETE"):
        refused(http.request(method, f"/v1/snapshots/{id}"), 404, "not_found")
