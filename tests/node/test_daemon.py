"""A real node with real sandboxes: what survives its death, its clients' and its own, and what a load does to it."""

import asyncio
import re
import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest
from node.harness import Node, create, gathered, run, spec, until

from skerry.model.command import CommandCause, CommandEvent, ExecSpec, Exit, Lost, Output
from skerry.model.errors import Conflict, SandboxGone, SkerryError, Unavailable
from skerry.model.ids import CommandId, new_command_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Limits, NetworkMode
from skerry.seams import Guest

pytestmark = pytest.mark.runtime

COUNTING = "i=0; while [ $i -lt 400 ]; do i=$((i+1)); echo $i; usleep 10000; done; exit 7"


@pytest.fixture(params=["crun", "runsc"])
async def node(request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    node = Node(request.param)
    await node.start()
    yield node
    await node.close()


async def start(guest: Guest, shell: str) -> CommandId:
    command = ExecSpec(id=new_command_id(), shell=shell)
    await guest.exec(command)
    return command.id


async def first_bytes(guest: Guest, command_id: CommandId, count: int) -> bytes:
    """At least `count` bytes from the beginning; the reader then goes away."""
    said = b""
    events = cast(AsyncGenerator[CommandEvent], guest.attach(command_id))
    async with asyncio.timeout(30), aclosing(events):
        async for event in events:
            assert isinstance(event, Output)
            said += event.data
            if len(said) >= count:
                break
    return said


async def rest(guest: Guest, command_id: CommandId, offset: int) -> tuple[Exit, bytes]:
    async with asyncio.timeout(60):
        exit, out, _ = gathered([event async for event in guest.attach(command_id, offset)])
    return exit, out


async def test_a_killed_node_takes_its_sandboxes_over_and_no_byte_is_missing(node: Node) -> None:
    sandbox_id, guest = await create(node.provider)
    command_id = await start(guest, COUNTING)
    quick = await start(guest, "sleep 0.2; echo done; exit 3")
    before = await first_bytes(guest, command_id, 30)
    node.kill(signal.SIGKILL)
    await asyncio.sleep(0.5)  # the quick one ends while nobody is there to see it
    await node.start()
    seen = {seen.id: seen for seen in await node.provider.list()}
    assert seen[sandbox_id].running
    exit, out = await rest(guest, command_id, len(before))
    assert (before + out).decode().split() == [str(number) for number in range(1, 401)]
    assert exit.code == 7
    exit, out = await rest(guest, quick, 0)
    assert (exit.code, out) == (3, b"done\n")
    assert (await run(guest, "echo and new ones"))[1] == b"and new ones\n"


async def test_output_that_floods_while_nodes_die_is_whole(node: Node) -> None:
    _, guest = await create(node.provider)
    command_id = await start(guest, "seq 1 2000000")
    for _ in range(3):
        await first_bytes(guest, command_id, 1000)
        node.kill(signal.SIGKILL)
        await node.start()
    exit, out = await rest(guest, command_id, 0)
    assert exit.code == 0
    assert out == b"".join(b"%d\n" % number for number in range(1, 2_000_001))


async def test_a_terminated_node_leaves_sandboxes_running_and_a_client_finds_the_next_one(node: Node) -> None:
    sandbox_id, guest = await create(node.provider)
    command_id = await start(guest, "sleep 0.5; echo still")
    node.kill(signal.SIGTERM)
    with pytest.raises(Unavailable):
        await guest.stat("/")
    await node.start()
    assert [(s.id, s.running) for s in await node.provider.list()] == [(sandbox_id, True)]
    assert (await rest(guest, command_id, 0))[1] == b"still\n"


async def test_stopped_sandboxes_are_dead_by_host_restart_and_keep_their_files(node: Node) -> None:
    sandbox_id, guest = await create(node.provider)
    await run(guest, "echo precious > /workspace/file")
    command_id = await start(guest, "echo said; sleep 300")
    await first_bytes(guest, command_id, 5)
    await node.provider.shutdown(stop_sandboxes=True)
    assert node.process is not None
    assert await asyncio.to_thread(node.process.wait, 30) == 0
    await node.start()
    (seen,) = await node.provider.list()
    assert (seen.running, seen.cause) == (False, Cause.HOST_RESTART)
    found = list((node.home / "pool" / "sandboxes").glob(f"{sandbox_id}/workspace/file"))
    assert [path.read_text() for path in found] == ["precious\n"]
    exit, out = gathered([event async for event in node.provider.output(sandbox_id, command_id)])[:2]
    assert (out, exit.cause) == (b"said\n", CommandCause.SANDBOX_GONE)


async def test_a_client_that_vanishes_kills_nothing_and_comes_back_by_offset(node: Node) -> None:
    sandbox_id, guest = await create(node.provider)
    command_id = await start(guest, COUNTING)
    before = await first_bytes(guest, command_id, 20)
    await node.provider.close()
    node.provider = node.connect()
    exit, out = await rest(node.provider.guest(sandbox_id), command_id, len(before))
    assert (before + out).decode().split() == [str(number) for number in range(1, 401)]
    assert exit.code == 7


async def test_two_hundred_commands_over_ten_sandboxes_at_once(node: Node) -> None:
    guests = [guest for _, guest in await asyncio.gather(*(create(node.provider) for _ in range(10)))]

    async def one(number: int) -> None:
        exit, out, err = await run(guests[number % 10], f"echo out {number}; echo err {number} >&2; exit {number % 7}")
        assert (exit.code, out, err) == (number % 7, b"out %d\n" % number, b"err %d\n" % number)

    async with asyncio.TaskGroup() as group:
        for number in range(200):
            group.create_task(one(number))


async def test_fifty_megabytes_of_output_leave_the_node_s_memory_flat(node: Node) -> None:
    _, guest = await create(node.provider)
    await run(guest, "head -c 3000000 /dev/zero")
    before = node.memory_mb()
    command_id = await start(guest, "head -c 50000000 /dev/zero | tr '\\0' x; exit 2")
    slow = cast(AsyncGenerator[CommandEvent], guest.attach(command_id))
    await anext(slow)  # a reader that has stopped reading
    peak, offset = before, 0
    async with asyncio.timeout(100):
        async for event in node.provider.output(_, command_id):
            if isinstance(event, Output):
                assert event.offset == offset and event.data == b"x" * len(event.data)
                offset += len(event.data)
                peak = max(peak, node.memory_mb()) if offset % 7 == 0 else peak
            else:
                assert isinstance(event, Exit) and event.code == 2
    await slow.aclose()
    assert offset == 50_000_000
    assert max(peak, node.memory_mb()) - before < 8, (before, peak)


async def test_beyond_the_cap_output_is_counted_and_told(node: Node) -> None:
    _, guest = await create(node.provider)
    command_id = await start(guest, "head -c 70000000 /dev/zero")
    async with asyncio.timeout(100):
        events = [event async for event in guest.attach(command_id)]
    kept = sum(len(event.data) for event in events if isinstance(event, Output))
    assert 64 << 20 >= kept > (64 << 20) - 100
    assert isinstance(events[-2], Lost) and (events[-2].offset, events[-2].length) == (kept, 70_000_000 - kept)
    assert isinstance(events[-1], Exit) and events[-1].offset == 70_000_000


async def test_a_memory_hog_is_told_as_oom(node: Node) -> None:
    sandbox_id, guest = await create(node.provider, limits=Limits(memory_mb=96, disk_mb=512))
    command_id = await start(guest, "sleep 0.1; tail /dev/zero")
    async with asyncio.timeout(60):
        exit, _, _ = gathered([event async for event in node.provider.output(sandbox_id, command_id)])
    assert exit.cause == CommandCause.OOM, exit
    (seen,) = await node.provider.list()
    if not seen.running:
        assert seen.cause == Cause.OOM
        with pytest.raises(SandboxGone) as caught:
            await guest.stat("/")
        assert caught.value.cause == "oom"


async def test_destroy_while_creating_wins_and_nothing_is_left(node: Node) -> None:
    for delay_s in (0.0, 0.005, 0.02, 0.05, 0.1):
        wanted = spec(network_mode=NetworkMode.BRIDGE)
        making = asyncio.ensure_future(node.provider.create(wanted))
        await asyncio.sleep(delay_s)
        await node.provider.destroy(wanted.id)
        await asyncio.wait([making])
        if not isinstance(making.exception(), Conflict):
            await node.provider.destroy(wanted.id)  # it was made before, or only after, our destroy
        assert await node.provider.list() == []
    assert node.leaks() == []


async def test_a_client_that_vanishes_while_creating_leaves_nothing(node: Node) -> None:
    for delay_s in (0.005, 0.03, 0.08):
        making = asyncio.ensure_future(node.provider.create(spec(network_mode=NetworkMode.BRIDGE)))
        await asyncio.sleep(delay_s)
        making.cancel()
        await asyncio.wait([making])
        for seen in await node.provider.list():
            await node.provider.destroy(seen.id)
    await until(lambda: node.leaks() == [], "nothing is left")


@pytest.mark.parametrize("delay_s", [0.01, 0.04, 0.08, 0.15])
async def test_a_node_killed_while_creating_cleans_up_or_keeps_whole_ones(node: Node, delay_s: float) -> None:
    wanted = [spec(network_mode=NetworkMode.BRIDGE) for _ in range(4)]
    makings = [asyncio.ensure_future(node.provider.create(one)) for one in wanted]
    await asyncio.sleep(delay_s)
    node.kill(signal.SIGKILL)
    await asyncio.wait(makings)
    made = {one.id for one, making in zip(wanted, makings, strict=True) if making.exception() is None}
    assert all(isinstance(making.exception(), Unavailable | None) for making in makings)
    await node.start()
    seen = await node.provider.list()
    assert made <= {one.id for one in seen} and all(one.running for one in seen)
    held = {one.id for one in seen}
    assert {match for path in node.leaks() for match in re.findall(r"sbx_\w{20}", path)} <= held
    for one in wanted:  # the same again: made anew, or found
        await node.provider.create(one)
        assert (await run(node.provider.guest(one.id), "echo works"))[1] == b"works\n"


async def test_a_node_killed_while_destroying_finishes_it_at_its_next_start(node: Node) -> None:
    ids = [sandbox_id for sandbox_id, _ in await asyncio.gather(*(create(node.provider) for _ in range(3)))]
    endings = [asyncio.ensure_future(node.provider.destroy(sandbox_id)) for sandbox_id in ids]
    await asyncio.sleep(0.015)
    node.kill(signal.SIGKILL)
    await asyncio.wait(endings)
    await node.start()
    ended = {one for one, ending in zip(ids, endings, strict=True) if ending.exception() is None}
    assert not ended & {seen.id for seen in await node.provider.list()}
    for ending in endings:
        assert isinstance(ending.exception(), SkerryError | None)
