"""What a node holds and has no record of, on fake parts: named, and told apart from what is being made."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from unit.node_host import Host, a_host, spec, until

from skerry.guest import shapes
from skerry.model.ids import TreeId, new_sandbox_id, new_snapshot_id
from skerry.model.leak import Leak, LeakKind
from skerry.node import leaks
from skerry.node.supervisor import Supervisor


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with a_host(tmp_path) as host:
        yield host


async def found(host: Host, node: Supervisor) -> dict[tuple[LeakKind, str], Leak]:
    return {(one.kind, Path(one.name).name): one for one in await leaks.find(host.parts, node)}


async def test_x3_sandboxes_of_whatever_state_are_no_leaks(host: Host) -> None:
    async with host.node() as node:
        running, stopped, gone = spec(), spec(), spec()
        for each in (running, stopped, gone):
            await node.create(each)
        await node.stop(stopped.id, 1)
        await node.destroy(gone.id)
        assert await found(host, node) == {}


async def test_x3_what_no_record_wants_is_named_by_its_kind(host: Host) -> None:
    async with host.node() as node:
        stray, tree, cache = new_sandbox_id(), TreeId(new_snapshot_id()), new_sandbox_id()
        host.layers.held.add(stray)
        host.network.held.add(stray)
        host.runtime.machines[stray] = host.a_machine()
        (host.home / "bundles" / stray).mkdir()
        os.utime(host.home / "bundles" / stray, (1, 1))
        host.trees.begun.add(tree)
        assert host.archiver is not None
        host.archiver.known.add(cache)
        told = await found(host, node)
    kinds = (LeakKind.CONTAINER, LeakKind.NETNS, LeakKind.SUBVOLUME, LeakKind.BUNDLE)
    assert set(told) == {
        *((kind, str(stray)) for kind in kinds),
        (LeakKind.HALF_TREE, f"{tree}.new"),
        (LeakKind.STAT_CACHE, str(cache)),
    }
    assert told[LeakKind.SUBVOLUME, stray].size_bytes == 4096  # what is charged to it
    assert all(one.fate and not one.waiting for one in told.values())


async def test_what_is_young_waits_and_is_no_leak_yet(host: Host) -> None:
    async with host.node() as node:
        (host.home / "bundles" / new_sandbox_id()).mkdir()
        assert [one.waiting for one in (await found(host, node)).values()] == [True]


async def test_what_is_being_made_is_no_leak(host: Host) -> None:
    host.faults.pause["runtime.start"] = asyncio.Event()
    async with host.node() as node:
        making = asyncio.ensure_future(node.create(spec()))
        await until(lambda: host.runtime.machines)
        assert await found(host, node) == {}
        host.faults.pause.pop("runtime.start").set()
        await making


async def test_a_bundle_that_nobody_wants_is_removed(host: Host) -> None:
    stray = new_sandbox_id()
    async with host.node() as node:
        (host.home / "bundles" / stray).mkdir()
        await node.tend()
        assert (host.home / "bundles" / stray).exists()  # it may be about to be used
        await node.tend()
        assert not (host.home / "bundles" / stray).exists()


def test_a_leak_crosses_the_nodes_socket_whole() -> None:
    leak = Leak(LeakKind.MOUNT, "/a", "it goes", 5, waiting=True)
    assert shapes.leak_from(shapes.leak_to(leak)) == leak
