"""Copies of copies of copies: what a sandbox began with is charged to nobody, and bounded all the same."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from layers_home import SMALL, fill, temporary_home

from skerry.config import Config
from skerry.model.errors import Refused
from skerry.model.ids import TreeId, new_sandbox_id, new_snapshot_id
from skerry.node import btrfs
from skerry.node.kept_trees import KeptTrees
from skerry.node.layers import Layers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

MIB = 1 << 20
MOST = SMALL.disk_mb * MIB


@pytest.fixture
def config() -> Iterator[Config]:
    with temporary_home() as config:
        yield config


@pytest.fixture
async def layers(config: Config) -> AsyncIterator[Layers]:
    layers = Layers(config)
    await layers.open()
    yield layers
    trees = KeptTrees(layers.pool, layers.turns)
    for sandbox_id in await layers.list():
        await layers.destroy(sandbox_id)
    for held in await trees.held([]):
        await trees.drop(held.id)
    await layers.close()


@pytest.fixture
def template(layers: Layers) -> Path:
    root = layers.pool.images / "template"
    btrfs.create_subvolume(root)
    layers.pool.trees.seal_image(root)
    return root


@pytest.mark.parametrize("by_snapshots", [False, True])
async def test_no_chain_of_copies_holds_more_than_twice_a_limit(
    layers: Layers, template: Path, by_snapshots: bool
) -> None:
    trees = KeptTrees(layers.pool, layers.turns)
    source: TreeId | None = None
    held = 0
    with pytest.raises(Refused) as caught:
        for link in range(6):
            box = new_sandbox_id()
            rootfs = await layers.create(box, template, SMALL, None, source)
            assert fill(rootfs.workspace / f"file{link}", 48 * MIB) == 0
            held = sum(file.stat().st_size for file in rootfs.workspace.iterdir())
            source = TreeId(box)
            if by_snapshots:
                source = TreeId(new_snapshot_id())
                await trees.capture(box, source)
            else:
                await layers.stop(box)
    assert caught.value.code == "disk_too_small" and "disk_mb" in caught.value.message
    assert MOST < held <= 2 * MOST


async def test_a_chain_whose_files_stay_few_goes_on_for_ever(layers: Layers, template: Path) -> None:
    source: TreeId | None = None
    for _ in range(6):
        box = new_sandbox_id()
        rootfs = await layers.create(box, template, SMALL, None, source)
        (rootfs.workspace / "file").unlink(missing_ok=True)
        assert fill(rootfs.workspace / "file", 40 * MIB) == 0
        if source is not None:
            await layers.destroy(source)  # type: ignore[arg-type]
        source = TreeId(box)


async def test_a_copy_that_is_refused_leaves_nothing(layers: Layers, template: Path) -> None:
    box, copy = new_sandbox_id(), new_sandbox_id()
    rootfs = await layers.create(box, template, SMALL)
    assert fill(rootfs.workspace / "file", 40 * MIB) == 0
    small = type(SMALL)(disk_mb=32, inodes=1000)
    with pytest.raises(Refused, match="disk_mb"):
        await layers.create(copy, template, small, None, TreeId(box))
    assert await layers.list() == {box}
