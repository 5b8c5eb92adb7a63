"""Sandboxes created, stopped, resumed and destroyed by the thousand: nothing of them is left, anywhere."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from acceptance.servers import eventually
from crash.durable_cases import drop, trees
from crash.instances import CrashServer
from crash.stores import stored_bytes, sweep

from skerry.node import btrfs, quota

CYCLES = int(os.environ.get("SKERRY_TEST_CYCLES", "1000"))
AT_ONCE = 4


def parts_of(server: CrashServer) -> dict[str, int]:
    """Descriptors and threads of API and node."""
    return {
        f"{part} {what}": len(os.listdir(f"/proc/{server.pid(part)}/{place}"))  # noqa: PTH208
        for part in ("api", "node")
        for what, place in (("descriptors", "fd"), ("threads", "task"))
    }


def groups_without_subvolume(server: CrashServer) -> set[int]:
    with btrfs.opened(server.config.pool_dir) as fd:
        return quota.without_subvolume(fd)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_x2_a_thousand_stops_and_resumes_leave_nothing(crash: CrashServer) -> None:
    """The fixture looks for containers, mounts, networks, subvolumes, groups of quotas and remembered trees."""

    def cycle(number: int) -> None:
        with crash.client() as client:
            box = client.create(network="none" if number % 4 == 0 else "bridge")
            box.files.write("kept", f"{number}\n".encode() * 1000)
            box.stop()
            if number % 5 == 0:
                drop(crash, box.id)
            box.resume()
            assert box.files.read("kept") == f"{number}\n".encode() * 1000
            if number % 10 == 0:
                snapshot, copy = box.snapshot(), box.fork()
                copy.destroy()
                snapshot.delete()
            if number % 2:
                box.stop(wait=number % 3 == 0)
            box.destroy()

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(cycle, range(AT_ONCE * 2)))  # what is made once, and kept, is made here
        before, memory = parts_of(crash), {part: crash.memory_of(part) for part in ("api", "node")}
        list(pool.map(cycle, range(CYCLES)))
    grown = {what: (before[what], now) for what, now in parts_of(crash).items() if now > before[what] + 6}
    assert not grown, "descriptors or threads are left"
    for part, then in memory.items():
        more = (crash.memory_of(part) - then) / (1 << 20)
        print(f"{part} grew by {more:.1f} MB over {CYCLES} cycles")
        assert more < 30, part
    assert trees(crash) == set()
    with crash.client() as client:
        assert not client.list().all()
        assert not client.snapshots.list().all()
    sweep(crash.config)
    assert stored_bytes(crash.config) == 0
    archive = crash.config.home / "archive"
    # What broken-off writes left there is swept when it is an hour old.
    assert [path for path in archive.rglob("*") if path.is_file() and path.parent.name != ".unfinished"] == []
    # Those of subvolumes go when the kernel has cleaned up after them, and the node comes by.
    eventually("no group is left", lambda: not groups_without_subvolume(crash), within_s=100, every_s=0.5)
