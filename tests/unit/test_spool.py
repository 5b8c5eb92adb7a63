"""The command spool: offsets, followers, the cap, crashes and full disks."""

import asyncio
import resource
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skerry.model.command import CommandEvent, Exit, Lost, Output
from skerry.model.errors import Invalid, NotFound
from skerry.model.ids import CommandId, SandboxId, new_command_id, new_sandbox_id
from skerry.node.spool import Spool
from skerry.node.spool_reader import CHUNK
from skerry.node.spool_writer import Writer

SANDBOX = new_sandbox_id()
CAP = 1 << 20


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", CAP, keep_s=3600)


def ended(offset: int, code: int | None = 0) -> Exit:
    return Exit(code, None, False, offset, 5)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def collect(events: AsyncIterator[CommandEvent]) -> list[CommandEvent]:
    async with asyncio.timeout(10):
        return [event async for event in events]


def text(events: list[CommandEvent], channel: int | None = None) -> bytes:
    return b"".join(e.data for e in events if isinstance(e, Output) and channel in (None, e.channel))


def finish(spool: Spool, command: CommandId, writer: Writer) -> None:
    writer.finish(ended(writer.end))
    spool.keep_exit(command)
    spool.let_go(command)


async def test_channels_stay_apart_and_in_order(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    for channel, data in ((1, b"one"), (1, b" two"), (2, b"\0err\xff"), (1, b"three")):
        await writer.append(channel, data)
    finish(spool, command, writer)
    assert await collect(spool.follow(SANDBOX, command)) == [
        Output(1, 0, b"one two"),
        Output(2, 7, b"\0err\xff"),
        Output(1, 12, b"three"),
        ended(17),
    ]


@settings(max_examples=60, deadline=None)
@given(
    pieces=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(min_size=1, max_size=40)), max_size=30),
    offset=st.integers(0, 600),
)
def test_any_offset_gives_exactly_the_rest(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[tuple[int, bytes]], offset: int
) -> None:
    async def run() -> list[CommandEvent]:
        spool = Spool(tmp_path_factory.mktemp("spool"), CAP, keep_s=60)
        command = new_command_id()
        writer = spool.start(SANDBOX, command)
        for channel, data in pieces:
            await writer.append(channel, data)
        finish(spool, command, writer)
        return await collect(spool.follow(SANDBOX, command, offset))

    events = asyncio.run(run())
    marked = [(channel, byte) for channel, data in pieces for byte in data][offset:]
    assert [(e.channel, byte) for e in events if isinstance(e, Output) for byte in e.data] == marked


async def test_a_command_without_output_makes_no_file_until_its_end(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    writer.finish(ended(0))
    assert await collect(spool.follow(SANDBOX, command)) == [ended(0)]
    assert list((tmp_path / "spool").iterdir()) == []
    spool.keep_exit(command)
    spool.let_go(command)
    assert await collect(spool.follow(SANDBOX, command)) == [ended(0)]


async def test_followers_are_woken_and_each_gets_everything(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    async with asyncio.TaskGroup() as group:
        followers = [group.create_task(collect(spool.follow(SANDBOX, command, n))) for n in (0, 0, 3)]
        for n in range(50):
            await writer.append(1 + n % 2, f"{n:02}".encode())
            await asyncio.sleep(0)
        finish(spool, command, writer)
    whole = "".join(f"{n:02}" for n in range(50)).encode()
    assert [text(follower.result()) for follower in followers] == [whole, whole, whole[3:]]


async def test_beyond_the_cap_bytes_are_counted_and_told_exactly(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    for _ in range(3):
        await writer.append(1, b"x" * 700_000)
    finish(spool, command, writer)
    events = await collect(spool.follow(SANDBOX, command))
    kept = len(text(events))
    assert CAP - 100 <= kept <= CAP
    assert events[-2:] == [Lost(kept, 2_100_000 - kept), ended(2_100_000)]


async def test_alternating_channels_cannot_fill_the_disk_with_index(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    for n in range(200_000):
        await writer.append(1 + n % 2, b"x")
    finish(spool, command, writer)
    assert sum(f.stat().st_size for f in (tmp_path / "spool" / command).iterdir()) <= CAP + 1024
    events = await collect(spool.follow(SANDBOX, command))
    assert len(text(events)) + sum(e.length for e in events if isinstance(e, Lost)) == 200_000


async def test_a_torn_write_is_cut_and_the_writer_goes_on_after_the_index(tmp_path: Path) -> None:
    command = new_command_id()
    writer = Spool(tmp_path, CAP, keep_s=60).start(SANDBOX, command)
    await writer.append(1, b"kept")
    with (tmp_path / command / "output").open("ab") as output:
        output.write(b"torn")
    with (tmp_path / command / "index").open("ab") as index:
        index.write(b"\1\2\3")

    again = Spool(tmp_path, CAP, keep_s=60)
    assert list(again.unfinished()) == [(command, SANDBOX)]
    resumed = again.start(SANDBOX, command)
    assert resumed.end == 4
    await resumed.append(1, b" on")
    finish(again, command, resumed)
    assert await collect(again.follow(SANDBOX, command)) == [Output(1, 0, b"kept on"), ended(7)]


async def test_bytes_lost_with_a_node_are_told_where_they_are_missing(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    await writer.append(1, b"abc")
    writer.lost(10)
    await writer.append(2, b"def")
    finish(spool, command, writer)
    assert await collect(spool.follow(SANDBOX, command)) == [
        Output(1, 0, b"abc"),
        Lost(3, 7),
        Output(2, 10, b"def"),
        ended(13),
    ]
    assert (await collect(spool.follow(SANDBOX, command, 5)))[0] == Lost(5, 5)


async def test_an_absurd_loss_is_told_without_a_file_of_that_size(spool: Spool, tmp_path: Path) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    await writer.append(1, b"abc")
    writer.lost(1 << 62)
    await writer.append(1, b"more")
    finish(spool, command, writer)
    events = await collect(spool.follow(SANDBOX, command))
    assert events[1:] == [Lost(3, (1 << 62) + 4 - 3), ended((1 << 62) + 4)]
    assert (tmp_path / "spool" / command / "output").stat().st_size == 3


async def test_an_output_that_is_found_again_stays_its_sandboxs(tmp_path: Path) -> None:
    """Whoever owns an sbxd may claim that any command is its own."""
    command = new_command_id()
    await Spool(tmp_path, CAP, keep_s=60).start(SANDBOX, command).append(1, b"secret")
    again = Spool(tmp_path, CAP, keep_s=60)
    assert again.start(new_sandbox_id(), command).sandbox_id == SANDBOX


async def test_another_sandbox_cannot_read_it(spool: Spool) -> None:
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    for _ in range(2):
        with pytest.raises(NotFound):
            await collect(spool.follow(new_sandbox_id(), command))
        finish(spool, command, writer)


@pytest.mark.parametrize("name", ["../../etc", "cmd_short", "", "cmd_" + "0" * 20 + "/.."])
async def test_only_ids_become_paths(spool: Spool, name: str) -> None:
    with pytest.raises(Invalid):
        spool.start(SANDBOX, CommandId(name))
    with pytest.raises(NotFound):
        await collect(spool.follow(SANDBOX, CommandId(name)))
    assert CommandId(name) not in spool


async def test_a_full_disk_loses_output_exactly_and_keeps_the_end(tmp_path: Path) -> None:
    """The file size limit stands for a full disk: writes beyond it fail in the same places."""
    spool = Spool(tmp_path, 64 << 20, keep_s=60)
    command = new_command_id()
    writer = spool.start(SANDBOX, command)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    import signal

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        for _ in range(10):
            await writer.append(1, b"y" * 10_001)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    finish(spool, command, writer)
    events = await collect(spool.follow(SANDBOX, command))
    assert len(text(events)) == 40_004
    assert events[-2:] == [Lost(40_004, 60_006), ended(100_010)]


async def test_a_slow_reader_holds_one_chunk_and_no_descriptor_leaks(spool: Spool) -> None:
    command = new_command_id()
    before = open_files()
    writer = spool.start(SANDBOX, command)
    follower = spool.follow(SANDBOX, command)
    await writer.append(1, b"z" * 600_000)
    first = await anext(follower)
    assert isinstance(first, Output)
    assert len(first.data) == CHUNK
    await follower.aclose()  # type: ignore[attr-defined]
    finish(spool, command, writer)
    assert open_files() == before


async def test_the_sweep_removes_what_is_old_and_spares_what_runs(tmp_path: Path) -> None:
    spool = Spool(tmp_path, CAP, keep_s=100)
    old, running = new_command_id(), new_command_id()
    for command in (old, running):
        await spool.start(SandboxId(SANDBOX), command).append(1, b"x")
    writer = spool.live(old)
    assert writer is not None
    finish(spool, old, writer)
    now = (tmp_path / old).stat().st_mtime
    assert spool.sweep(now + 99) == 0
    assert spool.sweep(now + 101) == 1
    with pytest.raises(NotFound):
        spool.exit_of(old)
    assert spool.exit_of(running) is None
