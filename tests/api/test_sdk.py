"""The client, both halves, against the real application over a fake fleet."""

import os
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from skerry import (
    AsyncSkerry,
    Conflict,
    GuestError,
    Invalid,
    NotFound,
    Sandbox,
    SandboxGone,
    Skerry,
    TooBusy,
    Unauthorized,
    Unavailable,
)
from skerry.model.ids import SandboxId

from .conftest import Server


@pytest.fixture
def client(server: Server) -> Iterator[Skerry]:
    with Skerry(server.url, server.key) as client:
        yield client


@pytest.fixture
def box(client: Skerry) -> Iterator[Sandbox]:
    with client.create("python") as box:
        yield box


def test_the_account_tells_who_it_is_and_what_it_uses(client: Skerry, box: Sandbox) -> None:
    assert client.me().id.startswith("acct_")
    assert client.usage().sandboxes["ready"] == 1


def test_keys_are_made_listed_and_ended(server: Server, client: Skerry) -> None:
    made = client.keys.create("ci")
    assert made.key is not None and made.key not in repr(made)
    with Skerry(server.url, made.key) as other:
        assert other.me().id == client.me().id
        assert {one.name for one in client.keys.list()} == {"test", "ci"}
        client.keys.delete(made.id)
        client.keys.delete(made.id)
        with pytest.raises(Unauthorized):
            other.me()
    with pytest.raises(Conflict) as caught:
        client.keys.delete(client.keys.list()[0].id)
    assert caught.value.code == "last_key"


def test_a_list_is_gone_through_in_pages_and_filtered(client: Skerry) -> None:
    boxes = [client.create(name=f"n{n}", metadata={"team": "a" if n % 2 else "b"}) for n in range(5)]
    ids = [box.id for box in reversed(boxes)]
    assert [box.id for box in client.list()] == ids == [box.id for box in client.list().all()]
    assert [box.name for box in client.list(name="n3")] == ["n3"]
    assert [box.name for box in client.list(metadata={"team": "a"})] == ["n3", "n1"]
    assert len(client.list(metadata={"team": None}).all()) == 5
    assert [box.id for box in client.list(id_prefix=ids[2][:12])] == [ids[2]]
    boxes[0].destroy()
    assert [box.id for box in client.list(status="destroyed")] == [boxes[0].id]
    assert len(client.list(status=["ready", "destroyed"]).all()) == 5
    listing = client.list(limit=3)
    assert [len(page) for page in listing.pages()] == [3]
    assert [box.id for box in listing] == ids[:3]
    assert client.list(limit=0).all() == []


def test_pages_follow_one_another(client: Skerry, monkeypatch: pytest.MonkeyPatch) -> None:
    from skerry.sdk._sync import listing

    for _ in range(5):
        client.create()
    monkeypatch.setattr(listing, "PAGE", 2)
    assert [len(page) for page in client.list().pages()] == [2, 2, 1]
    assert [len(page) for page in client.list(limit=3).pages()] == [2, 1]


def test_a_sandbox_is_found_by_id_name_and_the_beginning_of_its_id(client: Skerry) -> None:
    one, two = client.create(name="web"), client.create(name="db")
    for word in (one.id, "web", one.id[:14], one.id[4:14]):
        assert client.find(word).id == one.id
    client.create(name="web")
    with pytest.raises(Conflict, match=one.id):
        client.find("web")
    for word in ("nothing", "sbx_", "", two.id[4:7], "x" * 300, "sbx_" + "0" * 20):
        with pytest.raises(NotFound):
            client.find(word)


def test_name_and_metadata_are_replaced_kept_and_taken_away(box: Sandbox) -> None:
    assert box.update(name="a", metadata={"k": [1, None]}) is box
    assert (box.name, box.metadata) == ("a", {"k": [1, None]})
    assert box.update(name="b").metadata == {"k": [1, None]}
    assert (box.update(name=None).name, box.update(metadata=None).metadata) == (None, {})
    assert box.refresh().metadata == {}
    with pytest.raises(Invalid, match="65536"):
        box.update(metadata={"k": "x" * 70_000})


def test_the_environment_is_replaced_and_never_shown_by_repr(client: Skerry, box: Sandbox) -> None:
    assert box.set_env({"TOKEN": "hush-hush"}).env == {"TOKEN": "hush-hush"}
    assert "hush-hush" not in repr(box) + repr(box.info) + repr(client) + repr(vars(client)["_http"])
    [listed] = client.list()
    assert listed.env == {"TOKEN": "[redacted]"}
    assert listed.refresh().env == {"TOKEN": "hush-hush"}
    with pytest.raises(Invalid) as caught:
        box.set_env({"not a name": "hush-hush"})
    assert "hush-hush" not in str(caught.value)


def test_many_files_are_written_and_read_in_one_call(box: Sandbox) -> None:
    files = {f"d{n % 10}/{n}": bytes([n % 256]) * 4096 for n in range(500)}
    done = box.files.write_many(files, mode="0600")
    assert (done.count, done.size_bytes, done.skipped_count) == (500, 500 * 4096, 0)
    assert box.files.read_many(["d3/3", "d3/13"]) == {"d3/3": b"\x03" * 4096, "d3/13": b"\r" * 4096}
    assert box.files.stat("d3/3").mode == "0600"
    assert box.files.write_many([("/tmp/x", "ä"), ("/tmp/y/z", b"1"), ("/tmp/x", "last")]).count == 2
    assert box.files.read("/tmp/x") == b"last"
    assert box.files.write_many({}).count == 0


@pytest.mark.parametrize("path", ["", "a/", "../x", "a/../../x", "a\0b", "\ud800"])
def test_a_path_that_is_none_writes_nothing(box: Sandbox, path: str) -> None:
    with pytest.raises(Invalid):
        box.files.write_many({"fine": b"", path: b""})
    assert box.files.list() == []


def test_a_file_that_cannot_be_written_is_an_error_that_names_it(box: Sandbox) -> None:
    box.files.mkdir("taken")
    with pytest.raises(GuestError, match="taken") as caught:
        box.files.write_many({"taken": b"", "fine": b"x"})
    assert caught.value.code == "skipped"
    assert box.files.read("fine") == b"x"


def test_a_directory_goes_up_and_comes_down(box: Sandbox, tmp_path: Path) -> None:
    up = tmp_path / "up"
    (up / "deep/er").mkdir(parents=True)
    (up / "empty").mkdir()
    (up / "deep/er/run").write_text("#!/bin/sh\n")
    (up / "deep/er/run").chmod(0o755)
    (up / "link").symlink_to("deep/er/run")
    (up / ".git").mkdir()
    (up / "x.pyc").write_text("no")
    os.mkfifo(up / "fifo")
    seen: list[tuple[int, int | None]] = []
    done = box.files.upload_dir(up, "in", exclude=[".git", "*.pyc"], progress=lambda *told: seen.append(told))
    assert seen[-1] == (10, 10)
    assert (done.count, done.size_bytes, done.skipped_count) == (4, 10, 2)  # the fake knows no links
    assert [one.path for one in done.skipped] == ["fifo", "link"] and done.skipped[0].reason == "it is a FIFO"
    back = tmp_path / "back"
    told = box.files.download_dir("in", back, progress=lambda *told: seen.append(told))
    assert (told.count, told.size_bytes, told.skipped_count, seen[-1]) == (4, 10, 0, (10, None))
    assert {str(path.relative_to(back)) for path in back.rglob("*")} == {
        "deep",
        "deep/er",
        "deep/er/run",
        "empty",
    }
    assert (back / "deep/er/run").stat().st_mode & 0o777 == 0o755


def test_what_is_no_directory_is_told(box: Sandbox, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    box.files.write("file", b"x")
    with pytest.raises(Invalid, match="no directory"):
        box.files.upload_dir(file)
    with pytest.raises(NotFound):
        box.files.upload_dir(tmp_path / "none")
    with pytest.raises(NotFound):
        box.files.download_dir("none", tmp_path / "not-made")
    with pytest.raises(Invalid, match="no directory"):
        box.files.download_dir(".", file)
    with pytest.raises(GuestError):
        box.files.download_dir("file", tmp_path / "not-made")
    assert not (tmp_path / "not-made").exists()


def test_one_file_goes_up_and_comes_down_with_progress(box: Sandbox, tmp_path: Path) -> None:
    local, seen = tmp_path / "local", list[tuple[int, int | None]]()
    local.write_bytes(os.urandom(3_000_000))
    local.chmod(0o700)
    entry = box.files.upload(local, "there", progress=lambda *told: seen.append(told))
    assert (entry.size_bytes, entry.mode, seen[-1]) == (3_000_000, "0700", (3_000_000, 3_000_000))
    assert box.files.download("there", tmp_path / "back", progress=lambda *told: seen.append(told)) == 3_000_000
    assert (tmp_path / "back").read_bytes() == local.read_bytes() and seen[-1] == (3_000_000, 3_000_000)
    with pytest.raises(Invalid):
        box.files.download("there", tmp_path)
    with pytest.raises(NotFound):
        box.files.download("none", tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {"local", "back"}


def test_the_caller_s_own_error_comes_through_an_upload(box: Sandbox) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise OSError("mine")

    with pytest.raises(OSError, match="mine"):
        box.files.write_stream("half", breaks())
    assert not box.files.exists("half")


def test_a_tree_is_walked_and_searched(box: Sandbox) -> None:
    box.files.write_many({"a/b/one.py": b"", "a/two.py": b"", "three.txt": b""})
    assert [entry.path for entry in box.files.walk()] == [
        "/workspace/a",
        "/workspace/three.txt",
        "/workspace/a/b",
        "/workspace/a/two.py",
        "/workspace/a/b/one.py",
    ]
    for pattern, names in {"*.py": ["two.py", "one.py"], "a/*.py": ["two.py"], "**/*.py": ["two.py", "one.py"]}.items():
        assert [entry.name for entry in box.files.find(pattern)] == names
    with pytest.raises(NotFound):
        list(box.files.walk("none"))


def test_touching_makes_a_file_once(box: Sandbox) -> None:
    assert box.files.touch("new", mode="0600").mode == "0600"
    with pytest.raises(NotFound):
        box.files.touch("none", create=False)


def test_a_watch_gives_typed_changes_until_the_sandbox_ends(server: Server, box: Sandbox) -> None:
    with box.files.watch(recursive=True) as changes:
        box.files.mkdir("sub")
        change = next(changes)
        assert (change.kind, change.path) == ("created", "/workspace/sub")
        server.call(server.provider.guest(SandboxId(box.id)).die())
        with pytest.raises(SandboxGone):
            next(changes)
    with pytest.raises((NotFound, SandboxGone, Conflict)), box.files.watch("none"):
        pass


def test_a_watch_that_is_left_ends_on_the_server(server: Server, box: Sandbox) -> None:
    watchers = server.provider.guest(SandboxId(box.id)).files.watchers
    with box.files.watch():
        assert len(watchers) == 1
    deadline = time.monotonic() + 10
    while watchers:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)


def test_a_command_is_gone_through_as_it_runs(box: Sandbox) -> None:
    running = box.commands.start("echo out; echo err >&2")
    assert {(event.stream, event.data) for event in running if hasattr(event, "data")} == {
        ("stdout", b"out\n"),
        ("stderr", b"err\n"),
    }
    assert [one.command_id for one in box.processes()] == [] and box.ports() == []


def test_metrics_tell_limits_and_use(box: Sandbox) -> None:
    told = box.metrics(since=datetime.now(UTC) - timedelta(hours=1), step_s=60)
    assert told.sandbox_id == box.id and told.limits.memory_bytes == box.info.memory_mb << 20
    with pytest.raises(Invalid, match="zone"):
        box.metrics(until=datetime(2030, 1, 1))


def test_an_id_that_is_none_is_never_part_of_an_address(client: Skerry, box: Sandbox) -> None:
    for wrong in ("", ".", "..", "a\nb", f"{box.id}/env", "../keys"):
        with pytest.raises(Invalid):
            client.get(wrong)
    for wrong in ("a b", "ü", f"{box.id}?x=1"):
        with pytest.raises(NotFound):
            client.get(wrong)


def test_a_sandbox_is_stopped_watched_and_comes_back_with_its_next_use(server: Server, box: Sandbox) -> None:
    box.files.write("note.txt", b"kept" * 1000)
    seen = list[tuple[int, int | None]]()
    server.loop.call_soon_threadsafe(server.provider.hold, "archive")
    timer = threading.Timer(1.0, lambda: server.loop.call_soon_threadsafe(server.provider.let_go, "archive"))
    timer.start()
    assert box.stop(on_progress=lambda *told: seen.append(told)) is box
    assert box.status == "stopped" and seen and seen[-1] == (0, 4000)
    assert box.info.archive is not None and box.info.archive.size_bytes == 4000
    assert "stopped" in repr(box)
    assert box.files.read("note.txt") == b"kept" * 1000
    assert box.refresh().status == "ready"
    assert box.stop(wait=False).status in ("stopping", "stopped")
    assert box.wait_stopped(10).status == "stopped"
    assert box.resume() is box and box.status == "ready"
    assert box.commands.run("echo on").stdout == "on\n"


def test_a_busy_sandbox_is_stopped_by_force_alone(box: Sandbox) -> None:
    running = box.commands.start("sleep 60")
    with pytest.raises(Conflict) as caught:
        box.stop()
    assert caught.value.code == "sandbox_busy"
    assert box.stop(force=True).status == "stopped"
    assert running.wait().status == "failed"


def test_a_store_that_fails_is_the_sandboxes_message_and_the_waits_error(server: Server, box: Sandbox) -> None:
    server.provider.storage.down = True
    assert box.stop().status == "stopping"
    assert box.info.message
    with pytest.raises(Unavailable, match="object store"):
        box.wait_stopped()


def test_forks_are_sandboxes_or_errors_in_the_place_of_one(server: Server, client: Skerry, box: Sandbox) -> None:
    box.files.write("note.txt", b"kept")
    with box.fork(name="copy", metadata={"n": 1}) as copy:
        assert (copy.name, copy.metadata, copy.info.source) == ("copy", {"n": 1}, box.id)
        assert copy.files.read("note.txt") == b"kept"
    copies = box.forks(3)
    assert len({copy.id for copy in copies if isinstance(copy, Sandbox)}) == 3
    server.provider.faults["create"] = TooBusy("no room")
    assert [type(copy) for copy in box.forks(2)] == [TooBusy, TooBusy]
    with pytest.raises(TooBusy, match="no room"), Skerry(server.url, server.key, retries=0) as impatient:
        impatient.get(box.id).fork()


def test_snapshots_are_found_begun_from_and_deleted(client: Skerry, box: Sandbox) -> None:
    box.files.write("note.txt", b"kept")
    snapshot = box.snapshot("base")
    assert (snapshot.name, snapshot.status, snapshot.source_sandbox_id) == ("base", "ready", box.id)
    assert snapshot.id in repr(snapshot) and "'base'" in repr(snapshot)
    for word in (snapshot.id, "base", snapshot.id[:14], snapshot.id[5:14]):
        assert client.snapshots.find(word).id == snapshot.id
    for word in ("nothing", "snap_", "", "x" * 300, box.id):
        with pytest.raises(NotFound):
            client.snapshots.find(word)
    other = box.snapshot("base")
    with pytest.raises(Conflict, match=other.id):
        client.snapshots.find("base")
    assert [one.id for one in client.snapshots.list(source_sandbox_id=box.id)] == [other.id, snapshot.id]
    assert len(client.snapshots.list(name="base", limit=1).all()) == 1
    box.destroy()
    with client.create(snapshot_id=snapshot.id, idle_timeout_s=60) as copy:
        assert copy.files.read("note.txt") == b"kept" and copy.info.idle_timeout_seconds == 60
        with client.create(restore_from=copy.id) as second:
            assert second.files.read("note.txt") == b"kept"
    other.delete()
    client.snapshots.delete(snapshot.id)
    client.snapshots.delete(snapshot.id)
    assert client.snapshots.list().all() == []


async def test_the_asynchronous_half_stops_forks_and_keeps_snapshots(server: Server) -> None:
    async with AsyncSkerry(server.url, server.key) as client, await client.create() as box:
        await box.files.write("note.txt", b"kept")
        assert (await box.stop()).status == "stopped"
        snapshot = await box.snapshot("base")
        assert [one.id async for one in client.snapshots.list()] == [snapshot.id]
        async with await client.create(snapshot_id=snapshot.id) as copy, await box.fork() as fork:
            assert await copy.files.read("note.txt") == b"kept" == await fork.files.read("note.txt")
        await snapshot.delete()
        assert (await box.resume()).status == "ready"


async def test_the_asynchronous_half_does_the_same(server: Server, tmp_path: Path) -> None:
    async with AsyncSkerry(server.url, server.key) as client, await client.create(name="a") as box:
        assert [one.id async for one in client.list()] == [box.id] == [one.id for one in await client.list().all()]
        assert (await client.find("a")).id == box.id
        await box.files.write_many({"d/f": b"x" * 100})
        assert [entry.name async for entry in box.files.walk()] == ["d", "f"]
        assert (await box.files.download_dir("d", tmp_path / "d")).count == 1
        assert (await box.files.upload_dir(tmp_path, "up")).count == 2
        assert await box.files.download("up/d/f", tmp_path / "f") == 100
        await box.files.upload(tmp_path / "f", "again")
        async with box.files.watch() as changes:
            await box.files.touch("seen")
            assert (await anext(changes)).path == "/workspace/seen"
        running = await box.commands.start("echo hi")
        assert [event.data async for event in running] == [b"hi\n"]  # pyright: ignore
