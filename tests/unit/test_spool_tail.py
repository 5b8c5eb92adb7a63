"""A spool that keeps the tail: what is there, what is told as lost, what a crash, a full disk and slow readers do."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.model.command import CommandEvent, Exit, Keep, Lost, Output
from skerry.model.errors import NotFound
from skerry.model.ids import CommandId, new_command_id, new_sandbox_id
from skerry.node.spool import Spool
from skerry.node.spool_files import starts_in
from skerry.node.spool_reader import CHUNK
from skerry.node.spool_writer import Writer

SANDBOX = new_sandbox_id()
CAP = 1 << 20


def pattern(start: int, length: int) -> bytes:
    """Bytes of which each tells its position, near enough: 8 bytes a number."""
    first = start // 8
    return b"".join(n.to_bytes(8, "big") for n in range(first, (start + length) // 8 + 1))[start % 8 :][:length]


def ended(offset: int) -> Exit:
    return Exit(0, None, False, offset, 5)


def finish(spool: Spool, command: CommandId, writer: Writer) -> None:
    writer.finish(ended(writer.end))
    spool.keep_exit(command)
    spool.let_go(command)


async def collect(events: AsyncIterator[CommandEvent]) -> list[CommandEvent]:
    async with asyncio.timeout(30):
        return [event async for event in events]


def whole(events: list[CommandEvent], offset: int = 0) -> tuple[int, int]:
    """Check that the events join without gap or overlap, each byte in its place: bytes given, bytes lost."""
    given = lost = 0
    for event in events:
        if isinstance(event, Exit):
            assert event.offset == offset
            return given, lost
        assert event.offset == offset
        if isinstance(event, Lost):
            lost += event.length
            offset += event.length
        else:
            assert event.data == pattern(offset, len(event.data))
            given += len(event.data)
            offset += len(event.data)
    return given, lost


def on_disk(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path, CAP, keep_s=3600)


async def fill(writer: Writer, length: int, piece: int = 60_000) -> None:
    while length:
        size = min(piece, length)
        await writer.append(1, pattern(writer.end, size))
        length -= size


async def test_a_tail_never_goes_dark_and_tells_exactly_what_is_gone(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    await fill(writer, 5 * CAP + 17)
    assert on_disk(tmp_path / command) <= CAP + 4096
    finish(spool, command, writer)
    events = await collect(spool.follow(SANDBOX, command))
    given, lost = whole(events)
    assert given + lost == 5 * CAP + 17
    assert given >= CAP * 7 // 8 - 4096
    assert isinstance(events[0], Lost)
    assert sum(isinstance(event, Lost) for event in events) == 1


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 900)), max_size=60),
    losses=st.lists(st.integers(0, 60), max_size=2),
    offset=st.integers(0, 20_000),
    restart=st.integers(0, 60),
)
def test_any_offset_gives_the_kept_rest_and_the_gaps_of_it(
    tmp_path_factory: pytest.TempPathFactory,
    pieces: list[tuple[int, int]],
    losses: list[int],
    offset: int,
    restart: int,
) -> None:
    async def run() -> tuple[list[CommandEvent], int]:
        directory = tmp_path_factory.mktemp("spool")
        spool, command = Spool(directory, 4096, keep_s=60), new_command_id()
        writer = spool.start(SANDBOX, command, Keep.TAIL)
        writer.begin()
        for number, (channel, size) in enumerate(pieces):
            if number in losses:
                writer.lost(writer.end + 777)
            if number == restart:
                end = writer.end
                spool = Spool(directory, 4096, keep_s=60)
                writer = spool.start(SANDBOX, command)
                writer.lost(end)  # nothing was lost, unless the last thing that happened was a loss
            await writer.append(channel, pattern(writer.end, size))
        assert on_disk(directory / command) <= 4096 + 64 * 40
        end = writer.end
        finish(spool, command, writer)
        return await collect(spool.follow(SANDBOX, command, offset)), end

    events, end = asyncio.run(run())
    if offset <= end:
        given, lost = whole(events, offset)
        assert given + lost == end - offset


async def test_alternating_channels_stay_apart_within_the_cap(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    for n in range(200_000):
        await writer.append(1 + n % 2, b"xy"[n % 2 : n % 2 + 1])
    assert on_disk(tmp_path / command) <= CAP + 4096
    finish(spool, command, writer)
    events = await collect(spool.follow(SANDBOX, command))
    assert {(e.channel, e.data) for e in events if isinstance(e, Output)} == {(1, b"x"), (2, b"y")}
    assert sum(e.length if isinstance(e, Lost) else 1 for e in events[:-1]) == 200_000


async def test_a_live_reader_sees_everything_while_it_keeps_up(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    events: list[CommandEvent] = []
    seen = asyncio.Event()

    async def follow() -> None:
        async for event in spool.follow(SANDBOX, command):
            events.append(event)
            seen.set()

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(follow())
        for _ in range(40):
            await fill(writer, 100_003)
            while not isinstance(last := events[-1] if events else None, Output) or (
                last.offset + len(last.data) < writer.end
            ):
                seen.clear()
                await seen.wait()
        finish(spool, command, writer)
    assert whole(events) == (40 * 100_003, 0)


async def test_a_reader_that_falls_behind_is_told_what_it_missed_and_goes_on(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    await fill(writer, 600_000)
    slow = spool.follow(SANDBOX, command)
    events = [await anext(slow)]
    assert isinstance(events[0], Output)
    assert len(events[0].data) <= CHUNK
    await fill(writer, 3 * CAP)
    assert on_disk(tmp_path / command) <= CAP + 4096  # what the reader has open takes no space
    finish(spool, command, writer)
    events += await collect(slow)
    given, lost = whole(events)
    assert (given + lost, lost > CAP) == (600_000 + 3 * CAP, True)


async def test_a_reader_beyond_the_end_hears_of_the_end_alone(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    following = asyncio.ensure_future(collect(spool.follow(SANDBOX, command, 2**62)))
    await fill(writer, 2 * CAP)
    finish(spool, command, writer)
    assert await following == [ended(2 * CAP)]


async def test_a_loss_of_any_size_is_told_and_the_output_goes_on(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    await writer.append(1, b"before")
    writer.lost(1 << 62)
    await writer.append(2, b"after")
    finish(spool, command, writer)
    assert await collect(spool.follow(SANDBOX, command)) == [
        Output(1, 0, b"before"),
        Lost(6, (1 << 62) - 6),
        Output(2, 1 << 62, b"after"),
        ended((1 << 62) + 5),
    ]
    assert on_disk(tmp_path / command) < 1000


async def test_a_tail_that_printed_nothing_is_still_one_after_a_crash(tmp_path: Path) -> None:
    command = new_command_id()
    Spool(tmp_path, CAP, keep_s=60).start(SANDBOX, command, Keep.TAIL).begin()
    again = Spool(tmp_path, CAP, keep_s=60)
    assert command not in again  # it may be started: nothing says that it was
    assert list(again.unfinished()) == [(command, SANDBOX)]
    writer = again.start(SANDBOX, command)
    await fill(writer, 3 * CAP)
    finish(again, command, writer)
    given, lost = whole(await collect(again.follow(SANDBOX, command)))
    assert (given + lost, lost > CAP) == (3 * CAP, True)


async def test_a_tail_that_did_not_start_leaves_nothing(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    spool.start(SANDBOX, command, Keep.TAIL).begin()
    spool.discard(command)
    assert os.listdir(tmp_path) == []  # noqa: PTH208
    with pytest.raises(NotFound):
        await collect(spool.follow(SANDBOX, command))


async def test_a_full_disk_makes_a_gap_and_the_output_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """The file size limit stands for a full disk: writes beyond it fail in the same places."""
    spool, command = Spool(tmp_path, 64 << 20, keep_s=60), new_command_id()
    writer = spool.start(SANDBOX, command, Keep.TAIL)
    await fill(writer, 20_000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for limit in (30_000, 10):  # no room for data; then not even for a segment's header
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
            for _ in range(3):
                await fill(writer, 40_001, 40_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    await fill(writer, 50_000)
    finish(spool, command, writer)
    events = await collect(spool.follow(SANDBOX, command))
    assert whole(events)[1] == 6 * 40_001
    assert isinstance(events[0], Output)
    assert isinstance(events[-2], Output)
    assert len(starts_in(tmp_path / command)) == 2


async def test_the_sweep_spares_a_tail_whose_command_may_still_run(tmp_path: Path) -> None:
    spool, command = Spool(tmp_path, CAP, keep_s=100), new_command_id()
    await fill(spool.start(SANDBOX, command, Keep.TAIL), 1000)
    os.utime(tmp_path / command, (1, 1))
    now = (tmp_path / command / "output").stat().st_mtime
    assert Spool(tmp_path, CAP, keep_s=100).sweep(now + 99) == 0
    assert Spool(tmp_path, CAP, keep_s=100).sweep(now + 101) == 1


VICTIM = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_spool_tail import *
async def main():
    writer = Spool(Path({path!r}), 1 << 16, keep_s=60).start(SandboxId({sandbox!r}), CommandId({command!r}), Keep.TAIL)
    writer.begin()
    size = 1
    while True:
        await writer.append(1 + size % 2, pattern(writer.end, size % 5000 + 1))
        size = size * 7919 % 100_003
        if not size % 10:
            print(writer.end, flush=True)
from skerry.model.ids import CommandId, SandboxId
asyncio.run(main())
"""


@pytest.mark.parametrize("after_lines", [1, 3, 9, 20, 41, 77])
def test_kill_9_at_any_write_keeps_all_that_was_acknowledged(tmp_path: Path, after_lines: int) -> None:
    command = new_command_id()
    program = VICTIM.format(tests=str(Path(__file__).parent), path=str(tmp_path), sandbox=SANDBOX, command=command)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=env)
    assert process.stdout is not None
    told = 0
    for _ in range(after_lines):
        told = int(process.stdout.readline())
    process.kill()
    told = max([told, *(int(line) for line in process.stdout.read().split(b"\n")[:-1])])
    process.wait()
    process.stdout.close()
    asyncio.run(_goes_on(tmp_path, command, told))


async def _goes_on(path: Path, command: CommandId, told: int) -> None:
    spool = Spool(path, 1 << 16, keep_s=60)
    writer = spool.start(SANDBOX, command)
    assert writer.end >= told
    reached = writer.end
    await fill(writer, 1000)
    assert on_disk(path / command) <= (1 << 16) + 8192
    finish(spool, command, writer)
    given, lost = whole(await collect(spool.follow(SANDBOX, command)))
    assert given + lost == reached + 1000
    assert given >= min(reached, (1 << 16) * 6 // 8)


async def test_an_unread_output_waits_for_its_reader_and_loses_nothing(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.UNREAD)
    writing = asyncio.ensure_future(fill(writer, 8 * CAP))
    following = spool.follow(SANDBOX, command)
    events: list[CommandEvent] = [await anext(following)]
    watching = asyncio.ensure_future(collect(spool.follow(SANDBOX, command, 2**62)))
    while writer.end < CAP // 2:  # noqa: ASYNC110 - the writer runs on this loop, and tells nobody
        await asyncio.sleep(0)
    for _ in range(1000):  # the writer has had every chance
        await asyncio.sleep(0)
    assert writer.end <= CAP // 2 + 130_000
    read = asyncio.ensure_future(collect(following))
    await asyncio.wait_for(writing, 30)
    finish(spool, command, writer)
    events += await read
    assert whole(events) == (8 * CAP, 0)
    assert await watching == [ended(8 * CAP)]


async def test_a_reader_that_comes_back_finds_all_it_had_not_read(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.UNREAD)
    writing = asyncio.ensure_future(fill(writer, 8 * CAP))
    offset = lost = 0
    while not writing.done() or offset < writer.end:
        async with asyncio.timeout(10):
            following = spool.follow(SANDBOX, command, offset)
            for _ in range(3):
                event = await anext(following)
                assert isinstance(event, Output)
                assert event.data == pattern(offset, len(event.data))
                offset += len(event.data)
                if offset == 8 * CAP:
                    break
            await following.aclose()  # type: ignore[attr-defined]
    assert (offset, lost) == (8 * CAP, 0)
    await writing


@pytest.mark.parametrize("end", ["released", "nobody comes"])
async def test_nobody_to_wait_for_is_not_waited_for(tmp_path: Path, end: str) -> None:
    spool = Spool(tmp_path, CAP, keep_s=60, grace_s=60 if end == "released" else 0.1)
    command = new_command_id()
    writer = spool.start(SANDBOX, command, Keep.UNREAD)
    writing = asyncio.ensure_future(fill(writer, 3 * CAP))
    if end == "released":
        while writer.end < CAP // 2:  # noqa: ASYNC110
            await asyncio.sleep(0)
        writer.release()
    await asyncio.wait_for(writing, 20)
    finish(spool, command, writer)
    given, lost = whole(await collect(spool.follow(SANDBOX, command)))
    assert (given + lost, lost > CAP) == (3 * CAP, True)
