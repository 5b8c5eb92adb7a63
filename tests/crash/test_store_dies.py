"""The object store dies and comes back: the files stay on the node meanwhile, and the state says so."""

import os
from collections.abc import Iterator

import pytest
from acceptance.servers import eventually
from crash.durable_cases import CONTENT, drop
from crash.instances import SETTLED_S, CrashServer, calling
from crash.leftovers import held_by
from crash.stores import DirectoryStore, ObjectStore, S3Store, stored_bytes, sweep

from skerry import Conflict, Sandbox, Skerry, Unavailable

LARGE_MB = 96
WORDS = {"directory": "archive directory", "s3": "object store"}
# A store that was tried in vain is tried again after 5, 10, 20 seconds.
BACK_S = 60.0


class Place:
    """A server, its object store, and what the store is called when it cannot be used."""

    def __init__(self, kind: str) -> None:
        self.words = WORDS[kind]
        self.store: ObjectStore = DirectoryStore() if kind == "directory" else S3Store()
        self.store.live()
        self.server = CrashServer("crun", name=f"store-{kind}", **self.store.settings)
        self.server.prepare()
        self.server.start()

    def empty(self) -> None:
        self.store.live()
        with self.server.client() as client:
            for box in client.list():
                box.destroy()
            for snapshot in client.snapshots.list():
                snapshot.delete()


@pytest.fixture(scope="module", params=["directory", "s3"])
def running(request: pytest.FixtureRequest) -> Iterator[tuple[Place, frozenset[str]]]:
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    place = Place(request.param)
    place.empty()
    yield place, held_by(place.server.config)
    place.server.stop()
    place.store.close()


@pytest.fixture
def place(running: tuple[Place, frozenset[str]]) -> Iterator[Place]:
    """With the store up, and nothing in it; so it is left again."""
    place, empty = running
    yield place
    place.empty()
    config = place.server.config
    eventually("nothing is left", lambda: held_by(config) == empty, within_s=SETTLED_S, every_s=0.2)
    sweep(config)
    assert stored_bytes(config) == 0


@pytest.fixture
def client(place: Place) -> Iterator[Skerry]:
    with place.server.only_client() as client:
        yield client


def stopped(box: Sandbox) -> None:
    eventually("it is stopped", lambda: box.refresh().status == "stopped", within_s=BACK_S, every_s=0.2)
    assert box.info.message is None
    assert box.info.archive is not None


def large(box: Sandbox) -> str:
    """Fill it with what does not shrink; how it can be told that all of it is there."""
    box.commands.run(f"dd if=/dev/urandom of=large bs=1M count={LARGE_MB} 2>/dev/null").check()
    return digest(box)


def digest(box: Sandbox) -> str:
    return box.commands.run("md5sum large").check().stdout


def under_way(client: Skerry, box: Sandbox) -> None:
    """An archive yields to all else that the machine does: it may take a while until it has begun."""

    def moves() -> bool:
        progress = client.get(box.id).info.progress
        return progress is not None and progress.done_bytes > 0

    eventually("it is under way", moves, within_s=BACK_S)


def test_a_stop_says_that_its_files_wait_and_is_done_when_the_store_is_back(place: Place, client: Skerry) -> None:
    box = client.create()
    box.files.write("kept", CONTENT)
    place.store.die()
    box.stop()
    assert box.status == "stopping"
    assert box.info.message is not None
    assert place.words in box.info.message
    assert "tried again" in box.info.message
    assert client.capabilities().runtime == "crun"
    # Meanwhile it is as good as a stopped one: its next use brings it back, and it can be stopped again.
    assert box.files.read("kept") == CONTENT
    box.files.write("more", b"more")
    box.stop()
    assert box.status == "stopping"
    place.store.live()
    stopped(box)
    drop(place.server, box.id)
    assert (box.files.read("kept"), box.files.read("more")) == (CONTENT, b"more")


def test_a_sandbox_whose_files_wait_for_the_store_can_be_destroyed(place: Place, client: Skerry) -> None:
    box = client.create()
    place.store.die()
    box.stop()
    box.destroy()
    assert box.refresh().status == "destroyed"


def test_a_restore_says_that_the_store_is_away_and_loses_nothing(place: Place, client: Skerry) -> None:
    box = client.create()
    box.files.write("kept", CONTENT)
    box.stop()
    drop(place.server, box.id)
    place.store.die()
    for _ in range(2):
        with pytest.raises(Unavailable, match=place.words):
            box.resume()
        place.server.settled(client)
        assert box.refresh().status == "stopped"
        assert box.info.archive is not None
    with pytest.raises(Unavailable, match=place.words):
        box.fork()
    assert [each.id for each in client.list() if each.status != "failed"] == [box.id]
    place.store.live()
    assert box.files.read("kept") == CONTENT


def test_snapshots_and_forks_need_no_store_and_a_snapshot_is_stored_later(place: Place, client: Skerry) -> None:
    box = client.create()
    box.files.write("kept", CONTENT)
    place.store.die()
    taken, copy = box.snapshot(), box.fork()
    assert copy.files.read("kept") == CONTENT
    eventually("it says what it waits for", lambda: place.words in (taken.refresh().info.detail or ""), within_s=30)
    assert (taken.status, taken.archived) == ("ready", False)
    assert client.create(snapshot_id=taken.id).files.read("kept") == CONTENT
    place.store.live()
    eventually("it is stored", lambda: taken.refresh().archived, within_s=BACK_S, every_s=0.2)
    drop(place.server, taken.id)
    assert client.create(snapshot_id=taken.id).files.read("kept") == CONTENT


def test_a_store_that_dies_in_the_middle_of_an_archive_gets_all_of_it_later(place: Place, client: Skerry) -> None:
    box = client.create()
    before = large(box)
    box.stop(wait=False)
    under_way(client, box)
    place.store.die()
    eventually("it is told", lambda: box.refresh().info.message, within_s=BACK_S)
    assert box.status == "stopping"
    place.store.live()
    stopped(box)
    drop(place.server, box.id)
    assert digest(box) == before


def test_a_store_that_dies_in_the_middle_of_a_restore_has_lost_nothing(place: Place, client: Skerry) -> None:
    box = client.create()
    before = large(box)
    box.stop()
    drop(place.server, box.id)
    with calling(box.resume) as call:
        under_way(client, box)
        place.store.die()
    assert call.told is not None
    assert isinstance(call.told.error, Unavailable), call.told
    place.server.settled(client)
    assert box.refresh().status == "stopped"
    place.store.live()
    assert digest(box) == before


def test_f18_without_a_store_nothing_is_stopped_and_what_is_idle_is_destroyed() -> None:
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    server = CrashServer("crun", name="no-store", archive_url="none")
    server.prepare()
    server.start()
    try:
        with server.only_client() as client:
            for box in client.list():
                box.destroy()
            assert client.capabilities().storage == ""
            box = client.create()
            with pytest.raises(Conflict) as refused:
                box.stop()
            assert refused.value.code == "storage_disabled"
            assert box.commands.run("echo works").stdout == "works\n"
            idle = client.create(idle_timeout_s=1)
            eventually("it is destroyed", lambda: idle.refresh().status == "destroyed", within_s=30, every_s=0.2)
            # What needs no store goes on.
            box.files.write("kept", CONTENT)
            taken = box.snapshot()
            with box.fork() as copy, client.create(snapshot_id=taken.id) as another:
                assert (copy.files.read("kept"), another.files.read("kept")) == (CONTENT, CONTENT)
            taken.delete()
            box.destroy()
        eventually("nothing is left", lambda: not [one for one in held_by(server.config) if "sbx_" in one])
    finally:
        server.stop()
