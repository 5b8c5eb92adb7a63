"""What a hostile program inside is refused, tried on each runtime from the inside, as root and as a user."""

import os
import re
import shutil
from collections.abc import AsyncIterator

import pytest
from node.boxes import HERE, Box, Boxes, static_program

from skerry.model.errors import Refused
from skerry.node.runtimes import RUNTIMES

pytestmark = pytest.mark.runtime

ALL_ATTACKS = re.findall(r'IS\("(\w+)"\)', (HERE / "attacks.c").read_text())
# These act on gVisor's own kernel, in user space, and reach nothing of the host's.
ONLY_INSIDE_GVISOR = {
    "btrfs_subvolume",
    "btrfs_snapshot",
    "btrfs_clone",
    "btrfs_every",
    "keyctl",
    "syslog",
    "nice",
    "sysrq",
    "sysctl_net",
}
# Root inside is the owner of sbxd: it may read and stop what it could also have killed.
ROOTS_OWN = {"init_memory", "signal_init"}


@pytest.fixture(params=RUNTIMES)
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[Boxes]:
    boxes = Boxes.open(request.param)
    yield boxes
    await boxes.close()


@pytest.fixture
async def box(boxes: Boxes) -> Box:
    bundle = boxes.bundle()
    program = shutil.copy(static_program("attacks"), bundle.rootfs / "bin" / "attacks")
    suid = shutil.copy(program, bundle.rootfs / "bin" / "whoami-suid")
    if bundle.id_range is not None:
        shutil.chown(suid, bundle.id_range.base, bundle.id_range.base)
    os.chmod(suid, 0o4755)  # noqa: PTH101
    return await boxes.start(bundle=bundle)


def refused(output: str) -> dict[str, bool]:
    lines = [line.split() for line in output.splitlines()]
    assert all(line[1] in ("refused", "OPEN") for line in lines), output
    return {line[0]: line[1] == "refused" for line in lines}


async def each_alone(box: Box, names: list[str], prefix: str = "") -> set[str]:
    """Which of these were let through. Each in a process of its own: one success may open the way for the next."""
    script = "; ".join(f"{prefix} attacks {name}" for name in names)
    results = refused((await box.run(script)).output)
    assert set(results) == set(names)
    return {name for name, was_refused in results.items() if not was_refused}


async def test_root_inside_is_refused_every_way_to_the_host(boxes: Boxes, box: Box) -> None:
    allowed = ROOTS_OWN | (ONLY_INSIDE_GVISOR if not boxes.runtime.shares_kernel else set())
    let_through = await each_alone(box, [name for name in ALL_ATTACKS if name != "signal_init"])
    assert let_through <= allowed
    assert await box.answers()


async def test_a_user_inside_is_refused_what_is_roots(boxes: Boxes, box: Box) -> None:
    allowed = ONLY_INSIDE_GVISOR if not boxes.runtime.shares_kernel else set[str]()
    script = "; ".join(f"attacks {name}" for name in ALL_ATTACKS)
    results = refused((await box.run(f"su user -c '{script}'")).output)
    assert set(results) == set(ALL_ATTACKS)
    assert {name for name, was_refused in results.items() if not was_refused} <= allowed
    assert await box.answers()


async def test_one_way_does_not_open_another(boxes: Boxes, box: Box) -> None:
    tried = "attacks unshare_user clone_user unshare_mount raw_socket packet_socket mount clone_net mknod_block"
    assert all(refused((await box.run(f"su user -c '{tried}'")).output).values())


async def test_threads_are_made_all_the_same(box: Box) -> None:
    assert (await box.run("attacks threads && su user -c 'attacks threads'")).code == 0


async def test_memory_barriers_work_all_the_same(box: Box) -> None:
    assert (await box.run("attacks barriers")).code == 0


async def test_a_setuid_program_gives_nothing(box: Box) -> None:
    assert (await box.run("su user -c whoami-suid")).output == "1000 1000\n"


async def test_a_user_has_no_capability_and_root_has_only_the_listed(box: Box) -> None:
    status = "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status"
    of_root = dict(line.split() for line in (await box.run(status)).output.splitlines())
    # chown 0, dac_override 1, fowner 3, fsetid 4, kill 5, setgid 6, setuid 7, net_bind_service 10, sys_chroot 18
    expected = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 10, 18))
    assert {int(of_root[name], 16) for name in ("CapPrm:", "CapEff:", "CapBnd:")} == {expected}
    of_user = dict(line.split() for line in (await box.run(f'su user -c "{status}"')).output.splitlines())
    assert int(of_user["CapEff:"], 16) == int(of_user["CapPrm:"], 16) == 0


async def test_no_host_file_is_in_sight(boxes: Boxes, box: Box) -> None:
    secret = boxes.config.home / "secret"
    secret.write_text("of the host")
    secret.chmod(0o644)
    look = await box.run(f"cat {secret} /proc/1/root{secret} /proc/self/cwd{secret} ../../..{secret} 2>/dev/null")
    assert look.output == ""
    assert (await box.run("ls /home /var/lib 2>/dev/null; ls -A /root")).output == ""


async def test_no_host_process_is_in_sight(box: Box) -> None:
    pids = (await box.run("ls /proc | grep -E '^[0-9]+$' | sort -n | head -1; ls /proc | grep -cE '^[0-9]+$'")).output
    first, count = map(int, pids.split())
    assert first == 1
    assert count < 10


async def test_masked_files_say_nothing(boxes: Boxes, box: Box) -> None:
    say = await box.run(
        "for f in kcore keys kallsyms kmsg timer_list sched_debug; do head -c 64 /proc/$f; done 2>/dev/null"
    )
    assert say.output == ""


async def test_kernel_settings_are_read_only(box: Box) -> None:
    tried = await box.run("echo 1 > /proc/sys/kernel/panic; echo $?; echo b > /proc/sysrq-trigger; echo $?")
    assert [line for line in tried.output.splitlines() if line.isdigit()] == ["1", "1"]
    assert await box.answers()


async def test_the_mounts_are_as_told(boxes: Boxes, box: Box) -> None:
    mounts = {line.split()[1]: line.split() for line in (await box.run("cat /proc/mounts")).output.splitlines()}
    # gVisor does not show them, and crun sets them on read-only binds only: there they come with the layer that is
    # bound. Without new privileges, MKNOD and devices in the cgroup's list they are a second fence.
    if boxes.runtime.name == "runc":
        assert {"nosuid", "nodev"} <= set(mounts["/workspace"][3].split(","))
    assert "ro" in mounts["/.skerry/sbxd"][3].split(",")
    assert "/tmp" not in mounts  # on the root layer, where the disk limit counts it
    assert mounts["/run/skerry"][2] == "tmpfs"


async def test_what_is_written_lands_in_the_layers(boxes: Boxes, box: Box) -> None:
    await box.run("echo one > /tmp/file; echo two > /workspace/file")
    assert (box.bundle.rootfs / "tmp" / "file").read_text() == "one\n"
    assert (box.bundle.workspace / "file").read_text() == "two\n"


async def test_what_the_bundle_says_is_there(box: Box) -> None:
    said = await box.run("hostname; cat /etc/hostname /etc/resolv.conf; grep -c localhost /etc/hosts")
    assert said.output == "box\nbox\nnameserver 192.0.2.1\n2\n"


async def test_root_and_user_may_listen_on_low_ports_as_capabilities_say(box: Box) -> None:
    assert (await box.run("timeout 0.3 nc -l -p 80; echo $?")).output.endswith("143\n")


async def test_links_where_the_runtime_mounts_stay_inside(boxes: Boxes) -> None:
    """What a sandbox may have left in its root before a restart."""
    outside = boxes.config.home / "outside"
    outside.mkdir(mode=0o777)
    bundle = boxes.bundle()
    (bundle.rootfs / "workspace").symlink_to(outside)
    (bundle.rootfs / "etc" / "hosts").symlink_to(outside / "hosts")
    (bundle.rootfs / "run").symlink_to("/../../../../../../../../" + str(outside))
    try:
        assert await (await boxes.start(bundle=bundle)).answers()
    except Refused as refusal:
        assert bundle.sandbox_id not in await boxes.runtime.list(), refusal
    finally:
        assert list(outside.iterdir()) == []


async def test_a_tmp_that_is_a_link_is_not_followed(boxes: Boxes) -> None:
    outside = boxes.config.home / "outside"
    outside.mkdir(mode=0o777)
    bundle = boxes.bundle()
    (bundle.rootfs / "tmp").rmdir()
    (bundle.rootfs / "tmp").symlink_to(outside)
    assert await (await boxes.start(bundle=bundle)).answers()
    assert list(outside.iterdir()) == []


async def test_descriptors_of_the_host_do_not_reach_the_inside(boxes: Boxes, box: Box) -> None:
    with (boxes.config.home / "open").open("w") as file:
        file.write("x")
        again = await boxes.start()
        of_init = (await again.run("ls -l /proc/1/fd | grep -vE 'socket:|pipe:|host:|/dev/null|total'")).output
        assert of_init == ""


async def test_the_host_s_null_device_stays_the_host_s(box: Box) -> None:
    """crun and runc give what a container inherits to its root, who could then change it for everybody."""
    ids = box.bundle.id_range
    if ids is None:
        pytest.skip("gVisor's sentry passes nothing on")
    assert not ids.base <= os.stat("/dev/null").st_uid < ids.base + ids.size  # noqa: PTH116
