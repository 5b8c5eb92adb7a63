"""Host programs: deadlines, bounded output, descriptors, and a reaper that steals nothing."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from skerry.model.errors import DeadlineExceeded
from skerry.node import namespaces, processes
from skerry.node.processes import OUTPUT_LIMIT_BYTES, Reaper, Stdio


async def until(condition: object, deadline_s: float = 5.0) -> None:
    end = time.monotonic() + deadline_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end
        await asyncio.sleep(0.005)


def gone(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


async def test_a_program_runs_and_its_words_and_code_are_told() -> None:
    done = await processes.run(["sh", "-c", "echo out; echo err >&2; exit 5"], deadline_s=5)
    assert (done.code, done.output) == (5, "out\nerr\n")


async def test_a_signal_is_told_as_one() -> None:
    assert (await processes.run(["sh", "-c", "kill -9 $$"], deadline_s=5)).code == -9


async def test_endless_output_is_cut_and_costs_no_memory() -> None:
    done = await processes.run(["sh", "-c", "yes | head -c 10000000; exit 0"], deadline_s=10)
    assert len(done.output) <= OUTPUT_LIMIT_BYTES


async def test_a_deadline_kills_the_whole_group() -> None:
    began = time.monotonic()
    marker = f"300.{os.getpid()}"
    with pytest.raises(DeadlineExceeded):
        await processes.run(["sh", "-c", f"sleep {marker} & sleep {marker}"], deadline_s=0.2)
    assert time.monotonic() - began < 5

    def nobody() -> bool:
        commands = list(Path("/proc").glob("[0-9]*/cmdline"))
        return not any(marker.encode() in _read(path) for path in commands)

    await until(nobody)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


async def test_a_missing_program_is_an_error() -> None:
    with pytest.raises(FileNotFoundError):
        await processes.run(["/nonexistent/program"], deadline_s=5)


async def test_a_descendant_that_keeps_the_output_open_holds_nobody_up() -> None:
    began = time.monotonic()
    done = await processes.run(["sh", "-c", "sleep 2 & echo $!"], deadline_s=5)
    assert time.monotonic() - began < 1.5
    os.kill(int(done.output), 9)


async def test_no_descriptor_but_the_three_is_inherited() -> None:
    reading, writing = os.pipe()
    os.set_inheritable(writing, True)
    try:
        done = await processes.run(["ls", "/proc/self/fd"], deadline_s=5)
    finally:
        os.close(reading)
        os.close(writing)
    assert done.output.split() == ["0", "1", "2", "3"]  # 3 is the directory that ls reads


async def test_a_cancelled_run_leaves_no_process() -> None:
    before = set(processes._children())
    running = asyncio.ensure_future(processes.run(["sleep", "300"], deadline_s=300))
    await until(lambda: set(processes._children()) - before)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(processes._children()) <= before


async def test_an_orphan_is_reaped() -> None:
    processes.become_subreaper()
    reaper = Reaper()
    done = await reaper.run(["sh", "-c", "sleep 0.3 & echo $!"], deadline_s=5)
    pid = int(done.output)
    assert processes.parent_of(pid) == os.getpid()
    await until(lambda: gone(pid))
    reaper.close()


async def test_the_exit_code_of_an_adopted_process_is_known() -> None:
    reaper = Reaper()
    pid = await reaper.spawn(["sh", "-c", "exit 7"], Stdio())
    await until(lambda: gone(pid))
    assert reaper.exit_code(pid) == 7
    reaper.close()


def ended(code: int, leads: bool) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sh", "-c", f"exit {code}"], start_new_session=leads)


async def test_children_that_others_wait_for_are_left_to_them() -> None:
    """asyncio's, a thread's and a session leader's: all dead and waited for late, with the reaper at work meanwhile."""
    reaper = Reaper()
    theirs = await asyncio.create_subprocess_exec("sh", "-c", "exit 3")
    plain, leader = ended(4, False), ended(5, True)
    await until(lambda: all(processes._stat(p.pid).state == "Z" for p in (plain, leader)))  # type: ignore[union-attr]
    for _ in range(3):
        await reaper.run(["true"], deadline_s=5)
    assert await theirs.wait() == 3
    assert plain.wait() == 4
    assert leader.wait() == 5
    reaper.close()


async def test_private_mounts_are_seen_by_the_program_alone() -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")

    def hide() -> None:
        namespaces.private_mounts()
        namespaces.cover_with_tmpfs("/proc/sys/net")

    inside = await processes.run(["ls", "/proc/sys/net"], deadline_s=5, prepare=hide)
    assert (inside.code, inside.output) == (0, "")
    assert (await processes.run(["ls", "/proc/sys/net"], deadline_s=5)).output != ""


async def test_a_start_does_not_grow_with_our_memory() -> None:
    """A fork that copied page tables would take over 100 ms with this much touched memory."""
    ballast = bytearray(400 << 20)
    ballast[::4096] = b"x" * len(ballast[::4096])
    best = min([await _timed_spawn() for _ in range(5)])
    assert len(ballast) and best < 0.05, sys.version


async def _timed_spawn() -> float:
    began = time.monotonic()
    await processes.run(["true"], deadline_s=10)
    return time.monotonic() - began
