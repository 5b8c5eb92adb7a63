"""What has to hold after a crash in the middle of a stop, a resume, a restore, a snapshot, a fork: nothing is lost."""

import asyncio

from acceptance.servers import eventually
from crash.cases import holds_nothing_of
from crash.instances import SETTLED_S, CrashServer, Step

from skerry import Sandbox, Skerry, Snapshot
from skerry.model.ids import TreeId
from skerry.providers.local import LocalProvider

CONTENT = b"kept " * 100_000
LIVING = ("ready", "active")


def box_with_files(client: Skerry) -> Sandbox:
    box = client.create()
    box.files.write("kept", CONTENT)
    # Outside of the workspace, and never to be seen again after a stop.
    box.commands.run("echo unsynced > unsynced; touch /root/outside")
    return box


def drop(server: CrashServer, tree: str) -> None:
    """Lose the node's copy of a tree, so that only the object store has it."""

    async def ask() -> None:
        provider = LocalProvider(server.config.node_socket)
        try:
            await provider.drop(TreeId(tree))
        finally:
            await provider.close()

    asyncio.run(ask())


def trees(server: CrashServer) -> set[str]:
    async def ask() -> set[str]:
        provider = LocalProvider(server.config.node_socket)
        try:
            return {held.id for held in await provider.trees()}
        finally:
            await provider.close()

    return asyncio.run(ask())


def _all_there(box: Sandbox) -> None:
    assert box.files.read("kept") == CONTENT
    assert box.files.read("unsynced") == b"unsynced\n"


def _gone(server: CrashServer, box: Sandbox) -> None:
    box.destroy()
    assert box.refresh().status == "destroyed"
    holds_nothing_of(server, box)


def stop(server: CrashServer, step: Step, victim: str) -> None:
    """A stop is finished, or was never begun; either way the files are there."""
    with server.only_client() as client:
        box = box_with_files(client)
        told = server.crash(step, victim, box.stop)
        server.settled(client)
        box.refresh()
        assert box.status == "stopped" or (told.error is not None and box.status in LIVING)
        if box.status in LIVING:
            assert box.files.exists("/root/outside"), "it never stopped, so it lost nothing"
        _all_there(box)
        box.stop()
        drop(server, box.id)
        _all_there(box)
        assert not box.files.exists("/root/outside")
        _gone(server, box)


def resume(server: CrashServer, step: Step, victim: str, *, restored: bool = False) -> None:
    """A resume is finished, or undone: then the next use does it."""
    with server.only_client() as client:
        box = box_with_files(client)
        box.stop()
        if restored:
            drop(server, box.id)
        told = server.crash(step, victim, box.resume)
        server.settled(client)
        box.refresh()
        assert box.status in (LIVING if told.error is None else (*LIVING, "stopped"))
        _all_there(box)
        assert not box.files.exists("/root/outside")
        box.stop()
        _all_there(box)
        _gone(server, box)


def restore(server: CrashServer, step: Step, victim: str) -> None:
    resume(server, step, victim, restored=True)


def snapshot(server: CrashServer, step: Step, victim: str) -> None:
    """A snapshot is there and whole, or is not there."""
    with server.only_client() as client:
        box = box_with_files(client)
        told = server.crash(step, victim, lambda: box.snapshot(name="crashed"))
        server.settled(client)
        _all_there(box)
        assert box.files.exists("/root/outside")
        _no_snapshot_is_half_made(client)
        found = client.snapshots.list().all()
        assert len(found) <= 1
        if told.answer is not None:
            assert [each.id for each in found] == [told.answer.id]
        for each in found:
            with client.create(snapshot_id=each.id) as copy:
                _all_there(copy)
            _stored(client, each)
            drop(server, each.id)
            with client.create(snapshot_id=each.id) as copy:
                _all_there(copy)
            each.delete()
        _gone(server, box)
        eventually("no tree is left", lambda: not trees(server), within_s=SETTLED_S)


def _no_snapshot_is_half_made(client: Skerry) -> None:
    def whole() -> bool:
        return all(snapshot.status == "ready" for snapshot in client.snapshots.list())

    eventually("no snapshot is half-made", whole, within_s=SETTLED_S, every_s=0.1)


def delete(server: CrashServer, step: Step, victim: str) -> None:
    """A deletion is finished, or was never begun: then the snapshot is whole."""
    with server.only_client() as client:
        box = box_with_files(client)
        taken = box.snapshot()
        _stored(client, taken)
        told = server.crash(step, victim, taken.delete)
        server.settled(client)
        _no_snapshot_is_half_made(client)
        left = client.snapshots.list().all()
        assert not left or (told.error is not None and [each.id for each in left] == [taken.id])
        for each in left:
            with client.create(snapshot_id=each.id) as copy:
                _all_there(copy)
        taken.delete()
        _all_there(box)
        _gone(server, box)
        eventually("no tree is left", lambda: not trees(server), within_s=SETTLED_S)


def _stored(client: Skerry, snapshot: Snapshot) -> None:
    def stored() -> bool:
        return client.snapshots.get(snapshot.id).archived

    eventually("it is stored", stored, within_s=SETTLED_S, every_s=0.1)


def fork(server: CrashServer, step: Step, victim: str) -> None:
    """Each copy is whole or has failed, and is known; the source has noticed nothing."""
    with server.only_client() as client:
        box = box_with_files(client)
        told = server.crash(step, victim, lambda: box.forks(2))
        boxes = {each.id: each for each in server.settled(client)}
        assert boxes.pop(box.id).status in LIVING
        _all_there(box)
        assert box.files.exists("/root/outside")
        assert len(boxes) <= 2
        if told.answer is not None:
            assert {each.id for each in told.answer if isinstance(each, Sandbox)} <= boxes.keys()
        for copy in boxes.values():
            if copy.status in LIVING:
                _all_there(copy)
            else:
                assert (copy.status, copy.info.reason) == ("failed", "create")
            _gone(server, copy)
        _gone(server, box)
        eventually("no tree is left", lambda: not trees(server), within_s=SETTLED_S)
