"""What is kept of a stopped sandbox and what copies of it cost: layers and captured trees on a real pool."""
# ruff: noqa: ASYNC221 - nothing else runs in the loop of these tests

import asyncio
import errno
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from layers_home import FIRST, SECOND, SMALL, fill, temporary_home

from skerry.config import Config
from skerry.model.errors import Invalid, NotFound, TooBusy
from skerry.model.ids import SandboxId, TreeId, new_capture_id, new_sandbox_id, new_snapshot_id
from skerry.model.sandbox import Limits
from skerry.node import btrfs, mounts, quota
from skerry.node.kept_trees import KeptTrees
from skerry.node.layers import Layers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")

MIB = 1 << 20


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
    assert await layers.list() == set() and list(layers.pool.captures.iterdir()) == []
    await nothing_is_charged(layers)
    await layers.close()


@pytest.fixture
def trees(layers: Layers) -> KeptTrees:
    return KeptTrees(layers.pool, layers.turns)


@pytest.fixture
def template(layers: Layers) -> Path:
    root = layers.pool.images / "template"
    btrfs.create_subvolume(root)
    (root / "etc").mkdir()
    layers.pool.trees.seal_image(root)
    return root


def own(sandbox_id: SandboxId) -> TreeId:
    return TreeId(sandbox_id)


def a_snapshot() -> TreeId:
    return TreeId(new_snapshot_id())


async def nothing_is_charged(layers: Layers) -> None:
    """Every group that is left belongs to a subvolume that is there."""
    with btrfs.opened(layers.pool.path) as fd:
        until = time.monotonic() + 60
        while True:
            subprocess.run(["btrfs", "filesystem", "sync", layers.pool.path], check=True)
            await layers.turns.run(layers.pool.trees.tidy)
            left = {group for group in quota.groups(fd) if group >> 48} | quota.without_subvolume(fd)
            if not left:
                return
            assert time.monotonic() < until, f"groups were left: {left}"
            await asyncio.sleep(0.05)


def commit(layers: Layers) -> None:
    subprocess.run(["btrfs", "filesystem", "sync", layers.pool.path], check=True)


@pytest.mark.parametrize("ids", [None, FIRST])
async def test_a_stop_keeps_the_workspace_alone_and_unchanged(layers: Layers, template: Path, ids: object) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, ids)  # type: ignore[arg-type]
    with mounts.acting_as(FIRST.base if ids else 0):
        (rootfs.workspace / "kept").write_text("never synced")
        fill(rootfs.root / "lost", 20 * MIB)
    await layers.stop(sandbox_id)
    await layers.stop(sandbox_id)
    home = layers.pool.sandboxes / sandbox_id
    assert [path.name for path in home.iterdir()] == ["workspace"]
    assert mounts.mounts_under(layers.pool.mounts) == []
    with pytest.raises(OSError, match="Read-only") as caught:
        (home / "workspace/more").touch()
    assert caught.value.errno == errno.EROFS
    commit(layers)
    assert await layers.usage_bytes(sandbox_id) < MIB


async def test_a_resume_has_a_fresh_layer_and_the_limit_of_both(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, FIRST)
    with mounts.acting_as(FIRST.base):
        assert fill(rootfs.workspace / "kept", 40 * MIB) == 0
        (rootfs.root / "etc/lost").touch()
    for ids in (SECOND, None, FIRST):
        await layers.stop(sandbox_id)
        again = await layers.resume(sandbox_id, template, SMALL, ids)
        base = ids.base if ids else 0
        with mounts.acting_as(base):
            assert list((again.root / "etc").iterdir()) == []
            assert (again.workspace / "kept").stat().st_uid == base
            (again.root / "etc/lost").touch()
            assert fill(again.root / "more", 40 * MIB) == errno.EDQUOT
            (again.root / "more").unlink()


async def test_a_sandbox_that_is_at_its_limit_stops_and_resumes(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    assert fill(rootfs.root / "lost", 20 * MIB) == 0
    assert fill(rootfs.workspace / "big", 80 * MIB) == errno.EDQUOT
    await layers.stop(sandbox_id)
    again = await layers.resume(sandbox_id, template, SMALL)
    assert fill(again.workspace / "room-of-the-layer", 15 * MIB) == 0
    assert fill(again.workspace / "more", 40 * MIB) == errno.EDQUOT
    await layers.stop(sandbox_id)
    again = await layers.resume(sandbox_id, template, SMALL)
    for name in ("big", "room-of-the-layer", "more"):
        (again.workspace / name).unlink()
    async with asyncio.timeout(60):
        while await layers.usage_bytes(sandbox_id) > 2 * MIB:  # the kernel's cleaner takes its time
            await asyncio.to_thread(commit, layers)
            await asyncio.sleep(0.1)
    assert fill(again.workspace / "new", 60 * MIB) == 0


async def test_what_is_not_there_cannot_be_stopped_or_resumed(layers: Layers, template: Path) -> None:
    for verb in (layers.stop(new_sandbox_id()), layers.resume(new_sandbox_id(), template, SMALL)):
        with pytest.raises(NotFound) as caught:
            await verb
        assert caught.value.code == "tree_missing"


async def test_a_stop_half_done_is_finished_by_the_next(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, FIRST)
    with mounts.acting_as(FIRST.base):
        (rootfs.workspace / "kept").touch()
    home = layers.pool.sandboxes / sandbox_id
    btrfs.snapshot(home / "workspace", home / "workspace.flushing", readonly=True)
    btrfs.delete_subvolume(home / "layer")
    layers.pool.trees.seal(home / "workspace", True)
    await layers.stop(sandbox_id)
    assert [path.name for path in home.iterdir()] == ["workspace"]
    await layers.resume(sandbox_id, template, SMALL, FIRST)
    (home / "about.json").touch()
    await layers.destroy(sandbox_id)


async def test_what_was_never_synced_is_on_the_disk_after_a_stop(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    (rootfs.workspace / "file").write_bytes(os.urandom(8 * MIB))
    assert "delalloc" in extents(rootfs.workspace / "file"), "it was on the disk before"
    await layers.stop(sandbox_id)
    told = extents(layers.pool.sandboxes / sandbox_id / "workspace/file")
    assert "delalloc" not in told and "eof" in told


def extents(path: Path) -> str:
    """Where a file lies on the disk; what is not there yet is `delalloc`."""
    return subprocess.run(["filefrag", "-v", path], check=True, capture_output=True, text=True).stdout


async def test_a_copy_is_charged_for_what_is_new_in_it_and_held_to_its_own_limit(
    layers: Layers, template: Path
) -> None:
    source, copy = new_sandbox_id(), new_sandbox_id()
    rootfs = await layers.create(source, template, SMALL, FIRST)
    with mounts.acting_as(FIRST.base):
        fill(rootfs.workspace / "shared", 50 * MIB)
    copied = await layers.create(copy, template, SMALL, SECOND, own(source))
    commit(layers)
    assert await layers.usage_bytes(copy) < MIB <= await layers.usage_bytes(source)
    with mounts.acting_as(SECOND.base):
        assert (copied.workspace / "shared").stat().st_size == 50 * MIB
        assert fill(copied.workspace / "own", 40 * MIB) == 0
        assert fill(copied.workspace / "more", 40 * MIB) == errno.EDQUOT
    with mounts.acting_as(FIRST.base):
        assert fill(rootfs.workspace / "more", 5 * MIB) == 0


async def test_a_source_that_goes_first_leaves_nothing_once_its_copies_are_gone(
    layers: Layers, trees: KeptTrees, template: Path
) -> None:
    source, tree = new_sandbox_id(), a_snapshot()
    rootfs = await layers.create(source, template, SMALL)
    fill(rootfs.workspace / "shared", 20 * MIB)
    await trees.capture(source, tree)
    await layers.destroy(source)
    copies = [new_sandbox_id() for _ in range(3)]
    for copy in copies:
        copied = await layers.create(copy, template, SMALL, None, tree)
        assert (copied.workspace / "shared").stat().st_size == 20 * MIB
    await trees.drop(tree)
    await trees.tidy()
    for copy in copies:
        await layers.destroy(copy)
    await nothing_is_charged(layers)


async def test_leftover_groups_of_an_earlier_node_go_too(config: Config, layers: Layers, template: Path) -> None:
    source, copy = new_sandbox_id(), new_sandbox_id()
    rootfs = await layers.create(source, template, SMALL)
    fill(rootfs.workspace / "shared", 20 * MIB)
    await layers.create(copy, template, SMALL, None, own(source))
    await layers.destroy(source)
    await layers.close()
    await layers.open()  # it remembers nothing
    await layers.destroy(copy)
    await nothing_is_charged(layers)


async def test_a_capture_of_a_tree_that_is_written_is_of_one_instant(
    layers: Layers, trees: KeptTrees, template: Path
) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    ended = asyncio.Event()

    def write() -> None:
        number = 0
        while not ended.is_set():
            number += 1
            for name in ("first", "second"):
                (rootfs.workspace / name).write_text(str(number))

    writing = asyncio.get_running_loop().run_in_executor(None, write)
    captured = [new_capture_id() for _ in range(10)]
    try:
        for tree in captured:
            await trees.capture(sandbox_id, tree)
            await asyncio.sleep(0.01)
    finally:
        ended.set()
        await writing
    for tree in captured:
        path = (await trees.still(tree)).path
        first, second = ((path / name).read_text() if (path / name).exists() else "" for name in ("first", "second"))
        # The second is written after the first: it is never ahead of it. An empty one was just being written.
        if first and second:
            assert int(first) - 1 <= int(second) <= int(first)


async def test_a_captured_tree_cannot_be_changed_and_says_what_it_stems_from(
    layers: Layers, trees: KeptTrees, template: Path
) -> None:
    sandbox_id, tree = new_sandbox_id(), a_snapshot()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    (rootfs.workspace / "file").touch()
    written_ns = (rootfs.workspace / "file").stat().st_ctime_ns
    await trees.capture(sandbox_id, tree)
    still = await trees.still(tree)
    assert still.lineage == sandbox_id and still.since.timestamp() >= written_ns / 1e9 - 0.02
    with pytest.raises(OSError, match="Read-only"):
        (still.path / "file").write_text("x")
    (held,) = await trees.held([])
    assert (held.id, held.created_at) == (tree, still.since)


async def test_subvolumes_made_inside_do_no_harm(layers: Layers, trees: KeptTrees, template: Path) -> None:
    source, copy = new_sandbox_id(), new_sandbox_id()
    rootfs = await layers.create(source, template, SMALL)
    btrfs.create_subvolume(rootfs.workspace / "inner")
    (rootfs.workspace / "inner/file").touch()
    btrfs.snapshot(rootfs.workspace, rootfs.workspace / "inner/sealed", readonly=True)
    copied = await layers.create(copy, template, SMALL, None, own(source))
    assert list((copied.workspace / "inner").iterdir()) == []
    await trees.capture(source, a_snapshot())
    await layers.stop(source)
    again = await layers.resume(source, template, SMALL)
    assert (again.workspace / "inner/file").exists()
    await layers.stop(copy)


async def test_what_an_archive_gives_back_becomes_the_sandbox_s_and_is_charged_to_it(
    layers: Layers, trees: KeptTrees, template: Path
) -> None:
    sandbox_id = new_sandbox_id()
    path = await trees.begin(own(sandbox_id), 40 * MIB)
    assert not await trees.holds(own(sandbox_id))
    fill(path / "back", 40 * MIB)
    await trees.finish(own(sandbox_id))
    assert [held.id for held in await trees.held([])] == [own(sandbox_id)]
    rootfs = await layers.resume(sandbox_id, template, SMALL)
    assert await trees.held([]) == [] and await layers.list() == {sandbox_id}
    assert (rootfs.workspace / "back").stat().st_size == 40 * MIB
    assert fill(rootfs.workspace / "more", 40 * MIB) == errno.EDQUOT


async def test_what_an_archive_gave_back_is_dropped_with_its_charge(layers: Layers, trees: KeptTrees) -> None:
    sandbox_id = new_sandbox_id()
    fill(await trees.begin(own(sandbox_id), 0) / "back", 10 * MIB)
    await trees.undo(own(sandbox_id))
    fill(await trees.begin(own(sandbox_id), 0) / "back", 10 * MIB)
    await trees.finish(own(sandbox_id))
    await trees.drop(own(sandbox_id))
    await trees.drop(own(sandbox_id))
    await nothing_is_charged(layers)


async def test_half_made_and_half_removed_captures_go_at_the_start(
    layers: Layers, trees: KeptTrees, template: Path
) -> None:
    sandbox_id, whole, cut = new_sandbox_id(), a_snapshot(), a_snapshot()
    await layers.create(sandbox_id, template, SMALL)
    await trees.capture(sandbox_id, whole)
    await trees.capture(sandbox_id, cut)
    (layers.pool.captures / cut / "about.json").unlink()
    await trees.begin(a_snapshot(), 0)
    (layers.pool.captures / f"{a_snapshot()}.new").mkdir()
    await trees.open()
    assert [path.name for path in layers.pool.captures.iterdir()] == [whole]
    await trees.capture(sandbox_id, cut)


async def test_a_pool_that_runs_low_takes_no_new_work(layers: Layers, trees: KeptTrees, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, Limits(disk_mb=4096))
    with pytest.raises(TooBusy) as caught:
        await trees.begin(a_snapshot(), layers.pool.free_bytes() - 100 * MIB)
    assert caught.value.code == "disk_full"
    watching = asyncio.ensure_future(trees.run_low())
    fill(rootfs.workspace / "big", layers.pool.free_bytes() - 200 * MIB)
    commit(layers)
    async with asyncio.timeout(30):
        assert (await watching).code == "disk_full"
    await layers.stop(sandbox_id)
    for verb in (
        trees.capture(sandbox_id, a_snapshot()),
        trees.begin(a_snapshot(), 0),
        layers.create(new_sandbox_id(), template, SMALL, None, own(sandbox_id)),
        layers.resume(sandbox_id, template, SMALL),
    ):
        with pytest.raises(TooBusy):
            await verb
    await layers.stop(sandbox_id)


@pytest.mark.parametrize("bad", ["", "../x", "snap_../../../../etc", "cmd_00000000000000000000", "a/b"])
async def test_only_ids_name_trees(layers: Layers, trees: KeptTrees, template: Path, bad: str) -> None:
    sandbox_id = new_sandbox_id()
    await layers.create(sandbox_id, template, SMALL)
    for verb in (trees.capture(sandbox_id, TreeId(bad)), trees.begin(TreeId(bad), 0), trees.drop(TreeId(bad))):
        with pytest.raises(Invalid):
            await verb
