"""What a real node says it holds for nobody: nothing after all that sandboxes go through, and each thing planted."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from node.harness import Node, run, spec, until

from skerry.model.ids import TreeId, new_sandbox_id, new_snapshot_id
from skerry.model.leak import LeakKind
from skerry.model.sandbox import NetworkMode
from skerry.node import btrfs, quota
from skerry.node.network import netns

pytestmark = pytest.mark.runtime


@pytest.fixture(params=["crun", "runsc"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(request.param)
    await node.start()
    yield node
    await node.close()


async def test_x3_after_a_life_of_stops_copies_and_snapshots_nothing_leaks(node: Node) -> None:
    box = spec(network_mode=NetworkMode.BRIDGE)
    await node.provider.create(box)
    await run(node.provider.guest(box.id), "echo kept > /workspace/file")
    snapshot, copy = TreeId(new_snapshot_id()), spec()
    await node.provider.capture(box.id, snapshot)
    await node.provider.create(copy, snapshot)
    assert await node.provider.leaks() == []
    await node.provider.stop(box.id, 1)
    assert await node.provider.leaks() == []
    await node.provider.create(replace(box, generation=2), TreeId(box.id))
    assert await node.provider.leaks() == []
    for each in (box, copy):
        await node.provider.destroy(each.id)
    assert await node.provider.leaks() == []
    await node.provider.drop(snapshot)
    assert await node.provider.leaks() == []


async def test_x3_what_is_planted_is_named_and_most_of_it_goes_by_itself(node: Node) -> None:
    stray, pool = new_sandbox_id(), node.home / "pool"
    (pool / "sandboxes" / stray).mkdir()
    btrfs.create_subvolume(pool / "sandboxes" / stray / "workspace")
    with btrfs.opened(pool) as fd:
        quota.create(fd, quota.group_of(stray))
    (pool / "mounts" / stray / "root").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", pool / "mounts" / stray / "root"], check=True)  # noqa: ASYNC221
    netns.create(node.home / "run/netns" / stray, lambda: None)
    (node.home / "node/bundles" / stray).mkdir()
    (pool / "captures" / f"{new_snapshot_id()}.new").mkdir()
    for path in (pool / "sandboxes" / stray, node.home / "node/bundles" / stray):
        os.utime(path, (1, 1))
    found = await node.provider.leaks()
    assert {one.kind for one in found} == {
        LeakKind.SUBVOLUME,
        LeakKind.QUOTA_GROUP,
        LeakKind.MOUNT,
        LeakKind.NETNS,
        LeakKind.BUNDLE,
        LeakKind.HALF_TREE,
    }
    assert {one.kind for one in found if one.waiting} == {LeakKind.NETNS, LeakKind.HALF_TREE, LeakKind.MOUNT}
    assert str(pool / "mounts" / stray / "root") in {one.name for one in found if not one.waiting}
    node.kill()
    await node.start()
    await until(lambda: _only_the_group(node), "all but the group is gone")


async def _only_the_group(node: Node) -> bool:
    await asyncio.sleep(0)
    return {one.kind for one in await node.provider.leaks()} <= {LeakKind.QUOTA_GROUP}
