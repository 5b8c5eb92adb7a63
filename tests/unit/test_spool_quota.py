"""What all outputs of one sandbox may take together, and what is left to the host's disk."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.model.command import CommandEvent, Exit, Keep, Lost, Output
from skerry.model.ids import CommandId, SandboxId, new_command_id, new_sandbox_id
from skerry.node.spool import Spool
from skerry.node.spool_writer import Writer

CAP, ALL = 1 << 20, 3 << 20
SANDBOX, OTHER = new_sandbox_id(), new_sandbox_id()


def spool_in(path: Path, **options: object) -> Spool:
    return Spool(path, CAP, keep_s=3600, sandbox_cap_bytes=ALL, **options)  # type: ignore[arg-type]


async def printed(spool: Spool, size: int, sandbox: SandboxId = SANDBOX, keep: Keep = Keep.HEAD) -> CommandId:
    """A command that has printed `size` bytes, and runs."""
    command = new_command_id()
    await more(spool.start(sandbox, command, keep), size)
    return command


async def more(writer: Writer, size: int) -> None:
    while size:
        piece = min(60_000, size)
        await writer.append(1, b"x" * piece)
        size -= piece


def end(spool: Spool, command: CommandId) -> CommandId:
    writer = spool.live(command)
    assert writer is not None
    writer.finish(Exit(0, None, False, writer.end, 5))
    spool.keep_exit(command)
    spool.let_go(command)
    return command


async def collect(events: AsyncIterator[CommandEvent]) -> list[CommandEvent]:
    async with asyncio.timeout(30):
        return [event async for event in events]


async def told(spool: Spool, command: CommandId, sandbox: SandboxId = SANDBOX) -> tuple[int, int]:
    """Bytes that are kept of an ended command, and bytes told as lost; together all that it printed."""
    events = await collect(spool.follow(sandbox, command))
    kept = sum(len(event.data) for event in events if isinstance(event, Output))
    lost = sum(event.length for event in events if isinstance(event, Lost))
    assert isinstance(events[-1], Exit)
    assert kept + lost == events[-1].offset
    return kept, lost


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.glob("cmd_*/*put*"))


@pytest.mark.parametrize("keep", Keep)
async def test_running_commands_together_keep_no_more_than_their_sandbox_may(tmp_path: Path, keep: Keep) -> None:
    spool = spool_in(tmp_path, grace_s=0)
    commands = [await printed(spool, CAP // 2, keep=keep) for _ in range(12)]
    assert ALL - 12 * 4096 < on_disk(tmp_path) <= ALL
    other = await printed(spool, CAP // 2, OTHER)  # is another's, and has room
    for command in commands:
        end(spool, command)
    results = [await told(spool, command) for command in commands]
    assert all(kept + lost == CAP // 2 for kept, lost in results)
    assert await told(spool, end(spool, other), OTHER) == (CAP // 2, 0)


async def test_the_oldest_ended_outputs_make_room_for_new_ones_and_their_ends_stay(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    commands = [end(spool, await printed(spool, CAP // 2)) for _ in range(9)]
    assert on_disk(tmp_path) <= ALL
    assert [await told(spool, command) for command in commands[:3]] == [(0, CAP // 2)] * 3
    assert [await told(spool, command) for command in commands[5:]] == [(CAP // 2, 0)] * 4
    assert all(spool.exit_of(command) is not None for command in commands)


async def test_a_reader_of_an_output_that_makes_room_is_told_what_it_missed(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    oldest = end(spool, await printed(spool, CAP // 2))
    reading = spool.follow(SANDBOX, oldest)
    first = await anext(reading)
    assert isinstance(first, Output)
    for _ in range(8):
        end(spool, await printed(spool, CAP // 2))
    lost, ended = await collect(reading)
    assert isinstance(lost, Lost)
    assert (lost.offset, len(first.data) + lost.length) == (len(first.data), CAP // 2)
    assert isinstance(ended, Exit)


async def test_a_tail_goes_on_in_what_it_has_when_all_else_runs(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    tail = await printed(spool, CAP // 2, keep=Keep.TAIL)
    for _ in range(3):
        await printed(spool, CAP)
    writer = spool.live(tail)
    assert writer is not None
    await more(writer, 4 * CAP)
    await writer.append(1, b"the last words")
    assert on_disk(tmp_path) <= ALL + 4096
    events = await collect(spool.follow(SANDBOX, end(spool, tail)))
    assert isinstance(events[-2], Output)
    assert events[-2].data.endswith(b"the last words")


async def test_what_was_kept_counts_after_a_restart_too(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    ended = [end(spool, await printed(spool, CAP // 2)) for _ in range(4)]
    running = await printed(spool, CAP // 2)
    again = spool_in(tmp_path)
    assert list(again.unfinished()) == [(running, SANDBOX)]
    again.start(SANDBOX, running)
    commands = [await printed(again, CAP // 2) for _ in range(6)]
    assert on_disk(tmp_path) <= ALL
    assert [await told(again, command) for command in ended] == [(0, CAP // 2)] * 4
    assert await told(again, end(again, running)) == (CAP // 2, 0)
    assert (await told(again, end(again, commands[3])))[0] > CAP // 2 - 4096


async def test_what_is_swept_and_what_did_not_start_makes_room(tmp_path: Path) -> None:
    spool = spool_in(tmp_path)
    old = [end(spool, await printed(spool, CAP - 4096)) for _ in range(3)]
    for command in old:
        os.utime(tmp_path / command, (1, 1))
    spool.discard(await printed(spool, 1000))
    assert spool.sweep(5000) == 3
    commands = [await printed(spool, CAP - 4096) for _ in range(3)]
    assert [await told(spool, end(spool, command)) for command in commands] == [(CAP - 4096, 0)] * 3


@pytest.mark.parametrize("keep", [Keep.HEAD, Keep.TAIL])
async def test_the_hosts_last_space_is_left_to_it(tmp_path: Path, keep: Keep) -> None:
    free = [10 << 30]
    spool = spool_in(tmp_path, free_bytes=lambda: free[0])
    first, second = await printed(spool, 500_000, keep=keep), await printed(spool, 0, keep=keep)
    free[0] = 0
    writer = spool.live(second)
    assert writer is not None
    await more(writer, 900_000)
    free[0] = 10 << 30
    third = await printed(spool, 500_000, keep=keep)
    assert await told(spool, end(spool, first)) == (500_000, 0)
    kept, lost = await told(spool, end(spool, second))
    assert (kept + lost, lost > 600_000) == (900_000, True)
    assert await told(spool, end(spool, third)) == (500_000, 0)


async def test_a_tail_keeps_its_past_while_the_disk_has_no_room(tmp_path: Path) -> None:
    free = [10 << 30]
    spool = spool_in(tmp_path, free_bytes=lambda: free[0])
    tail = await printed(spool, 900_000, keep=Keep.TAIL)
    free[0] = 0
    writer = spool.live(tail)
    assert writer is not None
    await more(writer, 2_000_000)
    kept, _ = await told(spool, end(spool, tail))
    assert kept >= 7 * CAP // 8 - 4096
