"""Limits under attack: the sandbox answers afterwards, or says why it died."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import AsyncIterator

import pytest
from node.boxes import Box, Boxes, static_program

from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Limits
from skerry.node.cgroups import Cgroups
from skerry.node.runtimes import RUNTIMES

pytestmark = pytest.mark.runtime


@pytest.fixture(params=RUNTIMES)
async def boxes(request: pytest.FixtureRequest) -> AsyncIterator[Boxes]:
    boxes = Boxes.open(request.param)
    yield boxes
    await boxes.close()


async def armed(boxes: Boxes, limits: Limits) -> Box:
    bundle = boxes.bundle(limits)
    shutil.copy(static_program("attacks"), bundle.rootfs / "bin" / "attacks")
    return await boxes.start(bundle=bundle)


async def test_a_fork_bomb_hits_the_limit_and_the_sandbox_answers_afterwards(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=512, processes=64))
    bomb = await box.run("attacks fork_bomb", deadline_s=60)
    assert bomb.code == 0  # forks were refused
    until = time.monotonic() + 30
    while (ended := await box.run("echo alive")).output != "alive\n":
        assert time.monotonic() < until, ended
        await asyncio.sleep(0.05)


async def test_a_memory_hog_dies_and_its_sandbox_answers_or_says_oom(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=128))
    sandbox_id, cgroups = box.bundle.sandbox_id, Cgroups(boxes.config.instance)
    waiting = asyncio.ensure_future(boxes.runtime.wait_dead(sandbox_id))
    try:
        hog = await box.run("attacks memory_hog")
    except (EOFError, ConnectionResetError):
        # Under gVisor the kernel may take the sentry, and so all.
        assert not boxes.runtime.shares_kernel
        assert await asyncio.wait_for(waiting, 10) is Cause.OOM
        assert not await boxes.runtime.running(sandbox_id)
    else:
        assert hog.code != 0
        assert hog.code == -9 or not boxes.runtime.shares_kernel  # gVisor tells it as exit 1
        assert cgroups.oom_kills(sandbox_id) >= 1
        assert await box.answers()
        assert not waiting.done()
        await boxes.runtime.delete(sandbox_id)
        await waiting


async def test_a_first_process_that_the_kernel_took_for_memory_is_oom(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=128))
    waiting = asyncio.ensure_future(boxes.runtime.wait_dead(box.bundle.sandbox_id))
    if boxes.runtime.shares_kernel:
        # Offers the first process to the kernel; of three hogs none has as many points.
        hog = "echo 1000 > /proc/1/oom_score_adj; attacks memory_hog & attacks memory_hog & attacks memory_hog"
    else:
        hog = "dd if=/dev/zero of=/dev/fill bs=1M count=400"  # gVisor keeps its tmpfs in the sentry's memory
    with contextlib.suppress(EOFError, ConnectionResetError, BrokenPipeError):
        await box.run(hog)
    assert await asyncio.wait_for(waiting, 20) is Cause.OOM


async def test_an_exit_after_an_earlier_kill_for_memory_is_not_oom(boxes: Boxes) -> None:
    if not boxes.runtime.shares_kernel:
        pytest.skip("under gVisor a hog may take all with it")
    box = await armed(boxes, Limits(memory_mb=128))
    assert (await box.run("attacks memory_hog")).code == -9
    waiting = asyncio.ensure_future(boxes.runtime.wait_dead(box.bundle.sandbox_id))
    with contextlib.suppress(EOFError, ConnectionResetError):
        await box.run("exit-init")
    assert await asyncio.wait_for(waiting, 20) is Cause.RUNTIME_DIED


async def test_swap_does_not_extend_the_memory(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=128))
    usage = Cgroups(boxes.config.instance).usage(box.bundle.sandbox_id)
    assert usage is not None and 0 < usage.memory_bytes <= 128 << 20


async def test_a_cpu_hog_gets_its_share(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=256, cpu_millis=300))
    cgroups, began = Cgroups(boxes.config.instance), time.monotonic()

    def used_s() -> float:
        usage = cgroups.usage(box.bundle.sandbox_id)
        assert usage is not None
        return usage.cpu_ms / 1000

    before = used_s()
    await box.run("attacks cpu_hog", deadline_s=60)
    share = (used_s() - before) / (time.monotonic() - began)
    assert 0.05 < share < 0.36
    assert await box.answers()


async def test_shared_memory_is_bounded(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=256))
    full = await box.run(
        "dd if=/dev/zero of=/dev/shm/fill bs=1M count=200 2>&1; wc -c < /dev/shm/fill; rm /dev/shm/fill"
    )
    assert "No space left" in full.output
    assert await box.answers()


async def test_small_mounts_cannot_be_filled(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=128))
    # gVisor gives its /dev no size of its own: there the memory limit counts.
    for path in ("/run/skerry/fill", *(["/dev/fill"] if boxes.runtime.shares_kernel else [])):
        assert "No space left" in (await box.run(f"dd if=/dev/zero of={path} bs=1M count=20 2>&1")).output, path


async def test_open_files_are_bounded(boxes: Boxes) -> None:
    box = await armed(boxes, Limits(memory_mb=128))
    assert int((await box.run("ulimit -Hn")).output) <= 65_536
    assert (await box.run("ulimit -Hc")).output == "0\n"
