"""The layers of sandboxes on a real loop image."""
# ruff: noqa: ASYNC220, ASYNC221, ASYNC240, PTH208 - nothing else runs in the loop of these tests

import asyncio
import ctypes
import errno
import os
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from layers_home import FIRST, SECOND, SMALL, fill, owner_of, temporary_home

from skerry.config import Config
from skerry.model.bundle import IdRange
from skerry.model.errors import Invalid, NotFound, Refused, TooBusy
from skerry.model.ids import SandboxId, new_sandbox_id
from skerry.model.sandbox import Limits
from skerry.node import btrfs, mounts, quota
from skerry.node.layers import Layers

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture
def config() -> Iterator[Config]:
    with temporary_home() as config:
        yield config


@pytest.fixture
async def layers(config: Config) -> AsyncIterator[Layers]:
    layers = Layers(config)
    await layers.open()
    yield layers
    for sandbox_id in await layers.list():
        await layers.destroy(sandbox_id)
    assert await layers.list() == set()
    await layers.close()


@pytest.fixture
def template(layers: Layers) -> Path:
    root = layers.pool.images / "template"
    btrfs.create_subvolume(root)
    (root / "etc").mkdir()
    (root / "etc/os-release").write_text("Skerry test\n")
    os.chown(root / "etc/os-release", 0, 42)
    layers.pool.trees.seal_image(root)
    return root


def test_a_pool_says_how_it_limits_disks(layers: Layers) -> None:
    assert layers.disk_limit in ("simple-quota", "qgroup")
    assert layers.pool.probe.ok


async def test_a_sandbox_writes_over_its_template_and_the_template_stays(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    assert (rootfs.root / "etc/os-release").read_text() == "Skerry test\n"
    (rootfs.root / "etc/os-release").write_text("changed")
    (rootfs.root / "new").write_text("x")
    (rootfs.workspace / "file").write_text("y")
    assert (template / "etc/os-release").read_text() == "Skerry test\n"
    assert sorted(os.listdir(template)) == ["etc"]
    assert await layers.list() == {sandbox_id}


async def test_two_sandboxes_of_one_template_see_nothing_of_each_other(layers: Layers, template: Path) -> None:
    one = await layers.create(new_sandbox_id(), template, SMALL, FIRST)
    two = await layers.create(new_sandbox_id(), template, SMALL, SECOND)
    with mounts.acting_as(FIRST.base):
        (one.root / "secret").write_text("x")
        (one.workspace / "secret").write_text("x")
    assert not (two.root / "secret").exists()
    assert os.listdir(two.workspace) == []


async def test_ids_are_canonical_on_disk_and_mapped_in_the_mount(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, FIRST)
    home = layers.pool.sandboxes / sandbox_id
    seen = (rootfs.root / "etc/os-release").stat()
    assert (seen.st_uid, seen.st_gid) == (FIRST.base, FIRST.base + 42)
    for shown, stored in ((rootfs.root, home / "layer/upper"), (rootfs.workspace, home / "workspace")):
        assert shown.stat().st_uid == FIRST.base
        assert stored.stat().st_uid == 0
        with mounts.acting_as(FIRST.base):
            (shown / "root").touch()
        assert (stored / "root").stat().st_uid == 0
        os.chown(shown / "root", FIRST.base + 1000, FIRST.base + 7)
        assert ((stored / "root").stat().st_uid, (stored / "root").stat().st_gid) == (1000, 7)
        os.chown(stored / "root", 5, 6)
        assert ((shown / "root").stat().st_uid, (shown / "root").stat().st_gid) == (FIRST.base + 5, FIRST.base + 6)
        # An id that the range does not hold cannot be written.
        with pytest.raises(OSError) as caught:
            os.chown(shown / "root", 0, 0)
        assert caught.value.errno in (errno.EOVERFLOW, errno.EINVAL, errno.EPERM)
        with pytest.raises(OSError):
            (shown / "from-outside").touch()


async def test_a_narrow_umask_does_not_lock_a_sandbox_out_of_its_root(layers: Layers, template: Path) -> None:
    before = os.umask(0o077)
    try:
        rootfs = await layers.create(new_sandbox_id(), template, SMALL, FIRST)
    finally:
        os.umask(before)
    for path in (rootfs.root, rootfs.workspace):
        assert path.stat().st_mode & 0o777 == 0o755
        for parent in list(path.parents)[:3]:
            assert parent.stat().st_mode & 0o001, f"{parent} cannot be passed"


async def test_a_copied_up_file_keeps_its_canonical_owner(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, FIRST)
    with (rootfs.root / "etc/os-release").open("a") as file:
        file.write("more")
    stored = (layers.pool.sandboxes / sandbox_id / "layer/upper/etc/os-release").stat()
    assert (stored.st_uid, stored.st_gid) == (0, 42)


async def test_neither_devices_nor_setuid_work_in_a_mount(layers: Layers, template: Path) -> None:
    rootfs = await layers.create(new_sandbox_id(), template, SMALL, FIRST)
    plain = await layers.create(new_sandbox_id(), template, SMALL)
    for path in (rootfs.root, rootfs.workspace, plain.root, plain.workspace):
        flags = os.statvfs(path).f_flag
        assert flags & os.ST_NOSUID and flags & os.ST_NODEV


@pytest.mark.parametrize("ids", [None, FIRST])
async def test_layer_and_workspace_share_one_limit(layers: Layers, template: Path, ids: IdRange | None) -> None:
    rootfs = await layers.create(new_sandbox_id(), template, SMALL, ids)
    neighbour = await layers.create(new_sandbox_id(), template, SMALL, ids)
    with mounts.acting_as(owner_of(ids)):
        assert fill(rootfs.workspace / "a", 40 << 20) == 0
        assert fill(rootfs.root / "b", 40 << 20) == errno.EDQUOT
        assert fill(neighbour.root / "b", 40 << 20) == 0
        (rootfs.workspace / "a").unlink()
        assert fill(rootfs.root / "c", 16 << 20) == 0


async def test_empty_files_are_bounded_by_the_disk_limit(layers: Layers, template: Path) -> None:
    rootfs = await layers.create(new_sandbox_id(), template, Limits(disk_mb=16, inodes=10_000_000))
    made = make_files(rootfs.workspace, 100_000)
    print(f"16 MB of disk took {made} empty files")
    assert 5_000 < made < 100_000


def make_files(directory: Path, count: int) -> int:
    with btrfs.opened(directory) as fd:
        for number in range(count):
            try:
                os.close(os.open(f"f{number}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=fd))
            except OSError as error:
                assert error.errno == errno.EDQUOT
                return number
    return count


async def test_too_many_files_stop_a_sandbox_until_it_removes_some(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, Limits(disk_mb=512, inodes=1000))
    assert await layers.enforce_inodes() == set()
    assert make_files(rootfs.workspace, 1500) == 1500
    assert await layers.enforce_inodes() == {sandbox_id}
    with pytest.raises(OSError) as caught:
        (rootfs.root / "one-more").touch()
    assert caught.value.errno == errno.EDQUOT
    for number in range(1000):
        (rootfs.workspace / f"f{number}").unlink()
    deadline = time.monotonic() + 30
    while await layers.enforce_inodes():  # it looks again when that costs little
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)
    (rootfs.root / "one-more").touch()


async def test_usage_is_what_was_written(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    assert await layers.usage_bytes(sandbox_id) < 1 << 20
    fill(rootfs.workspace / "a", 10 << 20)
    assert 10 << 20 <= await layers.usage_bytes(sandbox_id) < 11 << 20
    assert await layers.usage_bytes(new_sandbox_id()) == 0


async def test_create_and_destroy_may_be_called_twice(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, FIRST)
    with mounts.acting_as(FIRST.base):
        (rootfs.workspace / "kept").touch()
    again = await layers.create(sandbox_id, template, SMALL, FIRST)
    assert again == rootfs and (again.workspace / "kept").exists()
    assert len([m for m in mounts.mounts_under(rootfs.root) if m.target == rootfs.root]) == 1
    await layers.destroy(sandbox_id)
    await layers.destroy(sandbox_id)
    assert await layers.list() == set()
    with pytest.raises(NotFound):
        await layers.mount(sandbox_id, template, SMALL, FIRST)


async def test_a_failed_mount_leaves_nothing_of_a_new_sandbox_and_all_of_an_old_one(
    layers: Layers, template: Path
) -> None:
    sandbox_id = new_sandbox_id()
    with pytest.raises(Refused):
        await layers.create(sandbox_id, template / "missing", SMALL)
    assert await layers.list() == set()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    (rootfs.workspace / "kept").touch()
    await layers.unmount(sandbox_id)
    with pytest.raises(Refused):
        await layers.create(sandbox_id, template / "missing", SMALL)
    assert (layers.pool.sandboxes / sandbox_id / "workspace/kept").exists()


@pytest.mark.parametrize("bad", ["", "../x", "sbx_../../../../etc", "sbx_short", "a/b"])
async def test_only_ids_name_sandboxes(layers: Layers, template: Path, bad: str) -> None:
    with pytest.raises(Invalid):
        await layers.create(SandboxId(bad), template, SMALL)
    with pytest.raises(Invalid):
        await layers.destroy(SandboxId(bad))


async def test_destroy_does_not_care_what_a_sandbox_left(layers: Layers, template: Path, config: Config) -> None:
    sandbox_id = new_sandbox_id()
    outside = config.home / "outside"
    outside.write_text("x")
    rootfs = await layers.create(sandbox_id, template, SMALL)
    for base in (rootfs.workspace, rootfs.root):
        (base / "link").symlink_to(outside)
        (base / "dir-link").symlink_to(config.home)
        (base / "\n -rf %s \udcff 😀").touch()
        (base / ("n" * 255)).mkdir(mode=0o000)
    nest(rootfs.workspace, 3000)
    btrfs.create_subvolume(rootfs.workspace / "inner")
    btrfs.create_subvolume(rootfs.workspace / "inner/innermost")
    btrfs.snapshot(rootfs.workspace, rootfs.workspace / "inner/copy", readonly=True)
    (rootfs.workspace / "inner/innermost/file").touch()
    await layers.destroy(sandbox_id)
    assert outside.read_text() == "x"
    assert await layers.list() == set()
    assert os.listdir(layers.pool.sandboxes) == []


def nest(base: Path, depth: int) -> None:
    fd = os.open(base, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)


async def test_a_subvolume_made_inside_is_charged_to_its_sandbox(layers: Layers, template: Path) -> None:
    if layers.disk_limit != "simple-quota":
        pytest.skip("full qgroups do not inherit")
    rootfs = await layers.create(new_sandbox_id(), template, SMALL)
    btrfs.create_subvolume(rootfs.workspace / "inner")
    assert fill(rootfs.workspace / "inner/a", 80 << 20) == errno.EDQUOT


async def test_destroy_gives_groups_and_space_back(layers: Layers, template: Path) -> None:
    pool = layers.pool.path
    with btrfs.opened(pool) as fd:
        before = quota.groups(fd)
    for _ in range(5):
        sandbox_id = new_sandbox_id()
        rootfs = await layers.create(sandbox_id, template, SMALL)
        fill(rootfs.workspace / "a", 30 << 20)
        await layers.destroy(sandbox_id)
    deadline = time.monotonic() + 60
    with btrfs.opened(pool) as fd:
        while (left := quota.groups(fd) - before) and time.monotonic() < deadline:
            subprocess.run(["btrfs", "filesystem", "sync", pool], check=True)
            quota.remove_stale(fd, [group for group in left if group >> 48 == 0])
            await asyncio.sleep(0.1)
    assert left == set()


async def test_crash_leftovers_are_listed_and_removed(layers: Layers, template: Path) -> None:
    half_made, half_removed, only_mounted = new_sandbox_id(), new_sandbox_id(), new_sandbox_id()
    (layers.pool.sandboxes / f"{half_made}.new").mkdir()
    btrfs.create_subvolume(layers.pool.sandboxes / f"{half_made}.new" / "layer")
    await layers.create(half_removed, template, SMALL)
    btrfs.delete_subvolume(layers.pool.sandboxes / half_removed / "workspace")
    (layers.pool.mounts / only_mounted / "root").mkdir(parents=True)
    mounts.mount("tmpfs", layers.pool.mounts / only_mounted / "root", "tmpfs")
    assert await layers.list() == {half_made, half_removed, only_mounted}
    for sandbox_id in (half_made, half_removed, only_mounted):
        await layers.destroy(sandbox_id)
    assert await layers.list() == set()
    assert (await layers.create(half_made, template, SMALL)).workspace.is_dir()


async def test_after_a_reboot_the_files_are_mounted_again(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, FIRST)
    with mounts.acting_as(FIRST.base):
        (rootfs.root / "kept").touch()
        (rootfs.workspace / "kept").touch()
    await layers.close()
    assert not (rootfs.root / "kept").exists()
    await layers.open()
    assert await layers.list() == {sandbox_id}
    again = await layers.mount(sandbox_id, template, SMALL, SECOND)
    assert (again.root / "kept").stat().st_uid == SECOND.base  # stored canonically: another range will do
    assert (again.workspace / "kept").exists()
    with mounts.acting_as(SECOND.base):
        assert fill(again.workspace / "a", 80 << 20) == errno.EDQUOT


async def test_a_second_node_finds_the_pool_that_a_killed_one_left(
    layers: Layers, template: Path, config: Config
) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    second = Layers(config)
    await second.open()
    assert len([m for m in mounts.mounts_under(config.pool_dir) if m.target == config.pool_dir]) == 1
    assert await second.mount(sandbox_id, template, SMALL) == rootfs
    assert await second.list() == {sandbox_id}


async def test_a_full_pool_takes_no_new_sandbox(layers: Layers, template: Path) -> None:
    rootfs = await layers.create(new_sandbox_id(), template, Limits(disk_mb=4096))
    free = await layers.free_bytes()
    assert fill(rootfs.workspace / "a", free - (200 << 20)) == 0
    sandbox_id = new_sandbox_id()
    with pytest.raises(TooBusy) as caught:
        await layers.create(sandbox_id, template, SMALL)
    assert caught.value.code == "disk_full"
    assert sandbox_id not in await layers.list()


async def test_a_hundred_are_made_at_once(layers: Layers, template: Path) -> None:
    wanted = [new_sandbox_id() for _ in range(100)]
    begin = time.perf_counter()
    made = await asyncio.gather(*(layers.create(i, template, SMALL, FIRST) for i in wanted))
    print(f"100 creates: {(time.perf_counter() - begin) * 1000:.0f} ms")
    assert len({rootfs.root for rootfs in made}) == 100
    assert await layers.list() == set(wanted)
    await asyncio.gather(*(layers.destroy(i) for i in wanted))
    assert await layers.list() == set()


async def test_new_files_never_share_a_number_with_the_template(layers: Layers) -> None:
    template = layers.pool.images / "high"
    layers.pool.trees.make_image(template)
    assert os.listdir(template) == []
    (template / "etc").mkdir()
    lowest = (template / "etc").stat().st_ino
    rootfs = await layers.create(new_sandbox_id(), template, SMALL)
    make_files(rootfs.root, 1000)
    assert max(path.lstat().st_ino for path in rootfs.root.glob("f*")) < lowest


async def test_unmounts_reach_the_copies_in_other_mount_namespaces(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    holder = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "slave", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdin and holder.stdout
        holder.stdin.write(b"x")
        holder.stdin.flush()
        assert holder.stdout.read(1) == b"x"
        table = Path(f"/proc/{holder.pid}/mountinfo")
        assert str(rootfs.root) in table.read_text()
        await layers.destroy(sandbox_id)
        assert str(rootfs.root) not in table.read_text()
    finally:
        holder.communicate()


@pytest.mark.parametrize("ids", [None, FIRST], ids=["plain", "id-mapped"])
async def test_kernels_that_refuse_detached_layers_are_given_standing_ones(
    layers: Layers, template: Path, ids: IdRange | None
) -> None:
    layers._layers_must_stand = True  # pyright: ignore[reportPrivateUsage] - as after the refusal of Linux 6.12
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL, ids)
    with mounts.acting_as(owner_of(ids)):
        (rootfs.root / "made").write_text("here")
    assert (rootfs.root / "made").stat().st_uid == owner_of(ids)
    assert (layers.pool.sandboxes / sandbox_id / "layer/upper/made").read_text() == "here"
    shown = {entry.target.name for entry in mounts.mounts_under(layers.pool.mounts / sandbox_id)}
    assert shown == ({"root", "workspace"} if ids else {"root"}), "the layers stand only while they are joined"
    await layers.destroy(sandbox_id)
    assert await layers.list() == set()


async def test_layers_that_a_crash_left_standing_go_with_their_sandbox(layers: Layers, template: Path) -> None:
    sandbox_id = new_sandbox_id()
    rootfs = await layers.create(sandbox_id, template, SMALL)
    left = rootfs.root.parent / "lower"
    left.mkdir()
    with mounts.cloned(template, None) as tree:
        mounts.attach(tree, left)
    await layers.destroy(sandbox_id)
    assert await layers.list() == set()
    assert mounts.mounts_under(layers.pool.mounts / sandbox_id) == []


async def test_the_idmap_probe_mounts_for_real(layers: Layers) -> None:
    probes = await layers.probes()
    assert [probe.ok for probe in probes] == [True, True]
    assert os.listdir(layers.pool.mounts) == [] and os.listdir(layers.pool.sandboxes) == []


def test_the_thread_is_root_again_after_an_idmapped_mount() -> None:
    libc = ctypes.CDLL(None)
    with mounts.acting_as(1_000_000):
        assert libc.setfsuid(-1) == 1_000_000
    assert libc.setfsuid(-1) == 0 and libc.setfsgid(-1) == 0


async def test_a_cancelled_create_is_done_before_the_destroy_that_follows(layers: Layers, template: Path) -> None:
    for delay_s in (0, 0, 0, 0.0002, 0.0005, 0.001, 0.002, 0.004):
        sandbox_id = new_sandbox_id()
        creating = asyncio.create_task(layers.create(sandbox_id, template, SMALL, FIRST))
        await asyncio.sleep(delay_s)
        creating.cancel()
        await layers.destroy(sandbox_id)
        assert await layers.list() == set()
