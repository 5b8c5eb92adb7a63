"""The client's part of stop, resume, fork and snapshots: what it waits for, and what it makes of the answers."""

from collections.abc import Iterator

import pytest

from skerry import Conflict, DeadlineExceeded, Invalid, Sandbox, Skerry, SkerryError, TooBusy, Unavailable

from .scripted_api import BOX, VIEW, ScriptedApi, refusal, scripted, view

PATH = f"/v1/sandboxes/{BOX}"
SNAPSHOT = {
    "id": "snap_00000000000000000000",
    "name": "",
    "status": "ready",
    "archived": False,
    "source_sandbox_id": BOX,
    "template": "python",
    "memory_mb": 1,
    "cpu_millis": 1,
    "disk_mb": 1,
    "timeout_seconds": 1,
    "network_mode": "none",
    "env": {"TOKEN": "hush-hush"},
    "capabilities": [],
    "size_bytes": 0,
    "created_at": "2030-01-01T00:00:00Z",
    "updated_at": "2030-01-01T00:00:00Z",
}
STOPPING = view(status="stopping", progress={"phase": "archiving", "done_bytes": 5, "total_bytes": 10})
FAILING = view(status="stopping", message="the bucket says no")


@pytest.fixture
def api() -> Iterator[ScriptedApi]:
    with scripted() as api:
        yield api


@pytest.fixture
def box(api: ScriptedApi) -> Iterator[Sandbox]:
    api.says("GET", PATH, view())
    with Skerry(api.url, "k", retries=0) as client:
        yield client.get(BOX)


def test_a_stop_waits_until_the_files_are_stored(api: ScriptedApi, box: Sandbox) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("GET", PATH, STOPPING, STOPPING, view(status="stopped"))
    assert box.stop() is box
    assert box.status == "stopped"
    assert api.asked[1] == ("POST", f"{PATH}/stop", {"force": False, "wait_seconds": 50})


def test_a_stop_without_a_wait_asks_once(api: ScriptedApi, box: Sandbox) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    assert box.stop(force=True, wait=False).status == "stopping"
    assert api.asked[1:] == [("POST", f"{PATH}/stop", {"force": True, "wait_seconds": 0})]


def test_a_stop_waits_no_longer_than_it_was_told(api: ScriptedApi, box: Sandbox) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("GET", PATH, STOPPING)
    assert box.stop(wait=0.3).status == "stopping"


def test_who_watches_is_told_how_far_it_is(api: ScriptedApi, box: Sandbox) -> None:
    seen: list[tuple[int, int | None]] = []
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("GET", PATH, STOPPING, view(status="stopped"))
    box.stop(on_progress=lambda *told: seen.append(told))
    assert seen == [(5, 10), (5, 10)]
    assert api.asked[1][2] == {"force": False, "wait_seconds": 0}


def test_a_store_that_fails_ends_the_wait_and_the_sandbox_says_why(api: ScriptedApi, box: Sandbox) -> None:
    api.says("POST", f"{PATH}/stop", STOPPING)
    api.says("GET", PATH, STOPPING, FAILING)
    assert box.stop().status == "stopping"
    assert box.info.message == "the bucket says no"
    with pytest.raises(Unavailable, match="the bucket says no"):
        box.wait_stopped()


def test_a_wait_for_what_does_not_stop_says_so(api: ScriptedApi, box: Sandbox) -> None:
    api.says("GET", PATH, STOPPING)
    with pytest.raises(DeadlineExceeded, match="goes on"):
        box.wait_stopped(0.2)
    api.says("GET", PATH, view(status="ready"))
    with pytest.raises(Conflict) as caught:
        box.wait_stopped()
    assert caught.value.code == "sandbox_ready"
    api.says("GET", PATH, STOPPING, view(status="stopped"))
    assert box.wait_stopped().status == "stopped"


def test_a_busy_sandbox_refuses_to_stop(api: ScriptedApi, box: Sandbox) -> None:
    api.says("POST", f"{PATH}/stop", refusal(409, "sandbox_busy", "a command runs"))
    with pytest.raises(Conflict) as caught:
        box.stop()
    assert caught.value.code == "sandbox_busy"


def test_a_fork_is_a_sandbox_and_forks_are_a_result_each(api: ScriptedApi, box: Sandbox) -> None:
    other = VIEW | {"id": "sbx_00000000000000000001"}
    api.says("POST", f"{PATH}/fork", (201, other))
    assert box.fork(name="copy", metadata={"n": 1}).id == other["id"]
    full = {"error": {"code": "too_busy", "message": "no room"}}
    odd = {"error": {"code": "never_heard_of", "message": "odd", "field": "count"}}
    api.says("POST", f"{PATH}/fork", (201, {"data": [other, full, odd]}))
    made, refused, unknown = box.forks(3)
    assert isinstance(made, Sandbox) and isinstance(refused, TooBusy) and isinstance(unknown, SkerryError)
    assert (refused.code, refused.message, unknown.code, unknown.field) == (
        *("too_busy", "no room", "never_heard_of", "count"),
    )
    assert [body for _, _, body in api.asked[1:]] == [{"name": "copy", "metadata": {"n": 1}}, {"count": 3}]
    assert None not in api.keys[1:], "a fork that is sent again must be known again"


def test_snapshots_are_shown_without_what_is_secret_in_them(api: ScriptedApi, box: Sandbox) -> None:
    api.says("POST", f"{PATH}/snapshots", (201, SNAPSHOT))
    snapshot = box.snapshot()
    assert api.keys[-1] is not None
    assert "hush-hush" not in repr(snapshot) + repr(snapshot.info)
    assert repr(snapshot) == f"<Snapshot {SNAPSHOT['id']} ready python 0.0 MB of {BOX} not stored yet>"
    api.says("GET", f"/v1/snapshots/{SNAPSHOT['id']}", (200, SNAPSHOT | {"name": "base", "archived": True}))
    assert repr(snapshot.refresh()) == f"<Snapshot {SNAPSHOT['id']} 'base' ready python 0.0 MB of {BOX}>"
    snapshot.delete()  # it is gone already


def test_a_snapshot_brings_its_template_so_another_is_refused(api: ScriptedApi) -> None:
    with Skerry(api.url, "k", retries=0) as client, pytest.raises(Invalid, match="brings its template") as refused:
        client.create("node", snapshot_id=f"{SNAPSHOT['id']}")
    assert (refused.value.field, api.asked) == ("template", [])
