"""The supervisor on fake parts: each step that fails, each party that dies or lies."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from unit.node_fakes import answer, hello, honest
from unit.node_host import Host, a_host, spec, until

from skerry.guest import frames
from skerry.guest.frames import FrameType
from skerry.model.command import CommandCause, ExecSpec, Exit
from skerry.model.errors import Conflict, ProtocolError, Refused, SandboxGone, SkerryError, TooBusy, Unavailable
from skerry.model.ids import SandboxId, new_command_id, new_sandbox_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Limits, Observed
from skerry.node.records import Stage, host_boot, moved
from skerry.node.supervisor import Supervisor


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Host]:
    async with a_host(tmp_path) as host:
        yield host


STEPS = ["layers.create", "network.attach", "runtime.start"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [Refused("no"), OSError(28, "No space left on device")])
async def test_a_step_that_fails_leaves_nothing(host: Host, step: str, error: Exception) -> None:
    host.faults.errors[step] = error
    async with host.node() as node:
        with pytest.raises(Refused):
            await node.create(spec())
        assert node.list() == [] and host.left() == {}


@pytest.mark.parametrize("step", STEPS)
async def test_a_caller_that_goes_away_at_any_step_leaves_nothing(host: Host, step: str) -> None:
    host.faults.pause[step] = asyncio.Event()
    async with host.node() as node:
        wanted = spec()
        making = asyncio.ensure_future(node.create(wanted))
        await until(lambda: step in host.faults.running.get(wanted.id, []))
        making.cancel()
        await asyncio.sleep(0.01)
        host.faults.pause[step].set()
        await asyncio.wait([making])
        assert making.cancelled()
        await until(lambda: node.list() == [])
        assert host.left() == {}


@pytest.mark.parametrize("step", STEPS)
async def test_a_destroy_at_any_step_of_a_create_ends_it(host: Host, step: str) -> None:
    host.faults.pause[step] = asyncio.Event()
    async with host.node() as node:
        wanted = spec()
        making = asyncio.ensure_future(node.create(wanted))
        await until(lambda: step in host.faults.running.get(wanted.id, []))
        ending = asyncio.ensure_future(node.destroy(wanted.id))
        await asyncio.sleep(0.01)
        host.faults.pause[step].set()
        await ending
        with pytest.raises(Conflict):
            await making
        assert node.list() == [] and host.left() == {}


@pytest.mark.parametrize("step", STEPS)
async def test_a_node_killed_at_any_step_of_a_create_cleans_up_at_its_next_start(host: Host, step: str) -> None:
    host.faults.pause[step] = asyncio.Event()
    wanted = spec()
    async with host.node() as node:
        making = asyncio.ensure_future(node.create(wanted))
        await until(lambda: step in host.faults.running.get(wanted.id, []))
        files = (host.home / "sandboxes" / f"{wanted.id}.jsonl").read_bytes()
        making.cancel()
        host.faults.pause[step].set()
        await asyncio.wait([making])
    # As a kill leaves it: the record says CREATING, and the parts have something.
    (host.home / "sandboxes" / f"{wanted.id}.jsonl").write_bytes(files)
    host.layers.held.add(wanted.id)
    async with host.node() as node:
        assert node.list() == [] and host.left() == {}
        await node.create(wanted)
        assert node.list() == [Observed(wanted.id, 1, running=True)]


async def garbage(channel: object, secured: bool) -> None:
    await asyncio.get_running_loop().sock_sendall(channel, b"\xff" * 4096)  # type: ignore[arg-type]


async def liar(channel: object, secured: bool) -> None:
    """Greets, takes everything, and then sends what nobody asked for."""
    loop = asyncio.get_running_loop()
    await hello(channel, secured)  # type: ignore[arg-type]
    decoder = frames.Decoder()
    while data := await loop.sock_recv(channel, 65_536):  # type: ignore[arg-type]
        for frame in decoder.feed(data):
            if frame.type == FrameType.HELLO:
                await loop.sock_sendall(channel, frames.encode(FrameType.PONG, 0, b"ok"))  # type: ignore[arg-type]
            elif frame.type == FrameType.OPEN:
                await loop.sock_sendall(channel, frames.encode(FrameType.CLOSE, frame.stream, b"{}"))  # type: ignore[arg-type]
                if b"configure" not in frame.payload:
                    await loop.sock_sendall(channel, b"\0\0\0\x7f" * 100)  # type: ignore[arg-type]


async def test_nonsense_instead_of_a_greeting_fails_the_create(host: Host) -> None:
    host.runtime.greet = garbage
    async with host.node() as node:
        with pytest.raises(ProtocolError):
            await node.create(spec())
        assert node.list() == [] and host.left() == {}


async def test_nonsense_later_ends_that_sandbox_and_no_other(host: Host) -> None:
    async with host.node() as node:
        good, bad = spec(), spec()
        await node.create(good)
        host.runtime.greet = liar
        await node.create(bad)
        watched = node.lives.deaths.watch()
        death = asyncio.ensure_future(anext(watched))
        await asyncio.sleep(0)
        with pytest.raises(SkerryError):
            await node.inside(bad.id)[0].stat("/")
        seen = await asyncio.wait_for(death, 10)
        await watched.aclose()
        assert (seen.id, seen.running, seen.cause) == (bad.id, False, Cause.RUNTIME_DIED)
        assert "protocol" in seen.detail
        await until(lambda: bad.id not in host.runtime.machines)
        assert isinstance((await host.run(node, good.id))[-1], Exit)
        assert bad.id in host.layers.held  # its files stay until it is destroyed
        await node.destroy(bad.id)
        assert bad.id not in host.layers.held


async def test_a_death_ends_commands_with_its_cause_and_frees_the_compute(host: Host) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        command = asyncio.ensure_future(host.run(node, wanted.id, "wait"))
        await until(lambda: any(w.end == 3 for w in host.spool.live_of(wanted.id).values()))
        host.runtime.die(wanted.id, Cause.OOM)
        exit = (await command)[-1]
        assert isinstance(exit, Exit) and (exit.code, exit.signal, exit.cause) == (None, None, CommandCause.OOM)
        assert node.list()[0].cause is Cause.OOM
        with pytest.raises(SandboxGone) as caught:
            node.inside(wanted.id)
        assert caught.value.cause == "oom"
        with pytest.raises(SandboxGone):
            await node.create(wanted)
        await until(lambda: not host.runtime.machines and not host.network.held)
        assert host.layers.held == {wanted.id}


async def test_a_channel_that_breaks_is_opened_anew(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        first = node.inside(wanted.id)[0]
        host.runtime.hang_up(wanted.id)

        def again() -> bool:
            try:
                return node.inside(wanted.id)[0] is not first
            except Unavailable:
                return False

        await until(again)
        assert isinstance((await host.run(node, wanted.id))[-1], Exit)
        assert node.list()[0].running


async def boaster(channel: socket.socket, secured: bool) -> None:
    """Greets, and whenever it is asked tells of commands that nobody started, each of which prints."""
    loop = asyncio.get_running_loop()
    decoder = frames.Decoder()

    def told(frame: frames.Frame) -> bytes:
        ask = frames.decode_json(frame.payload) if frame.type == FrameType.OPEN else {}
        if ask.get("op") == "commands":
            made = [{"id": new_command_id(), "pid": 7, "running": True, "acked": 0, "offset": 3} for _ in range(40)]
            return frames.encode(FrameType.CLOSE, frame.stream, frames.encode_json({"commands": made}))
        if ask.get("op") == "attach":
            attached = frames.encode_json({"event": "attached", "pid": 7, "from": 0, "running": True})
            return frames.encode(FrameType.EVENT, frame.stream, attached) + frames.encode(
                FrameType.DATA, frame.stream, b"hi\n", 1
            )
        return answer(frame)

    with suppress(OSError):
        await hello(channel, secured)
        while data := await loop.sock_recv(channel, 65_536):
            for frame in decoder.feed(data):
                await loop.sock_sendall(channel, told(frame))


async def test_commands_that_nobody_started_fill_no_disk_however_often_they_are_told(host: Host) -> None:
    host.runtime.greet = boaster
    async with host.node() as node:
        wanted = spec(limits=Limits(processes=64))
        await node.create(wanted)
        for _ in range(6):
            first = node.inside(wanted.id)[0]
            host.runtime.hang_up(wanted.id)
            await until(lambda first=first: reachable(node, wanted.id) and node.inside(wanted.id)[0] is not first)
        await until(lambda: all(writer.end for writer in host.spool.live_of(wanted.id).values()))
        assert 40 <= len(list((host.home / "spool").iterdir())) <= 64
        assert isinstance((await host.run(node, wanted.id))[-1], Exit)


async def test_a_sandbox_that_cannot_be_reached_any_more_is_given_up(host: Host) -> None:
    host.faults.errors["runtime.bridge"] = Unavailable("silence")
    async with host.node(return_s=0.3) as node:
        wanted = spec()
        await node.create(wanted)
        host.runtime.hang_up(wanted.id)
        await until(lambda: not node.list()[0].running)
        assert "silence" in node.list()[0].detail


async def test_a_way_that_is_held_shut_for_a_while_is_tried_until_it_opens(host: Host) -> None:
    host.faults.errors["runtime.bridge"] = Unavailable("no place for those who are not proven")
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        host.runtime.hang_up(wanted.id)
        await until(lambda: host.faults.taken["runtime.bridge"] >= 5)
        del host.faults.errors["runtime.bridge"]
        await until(lambda: reachable(node, wanted.id))
        assert isinstance((await host.run(node, wanted.id))[-1], Exit)


@pytest.mark.parametrize("opens", [True, False])
async def test_a_sandbox_that_holds_its_way_shut_holds_no_start_up(host: Host, opens: bool) -> None:
    shut, command = spec(), ExecSpec(id=new_command_id(), shell="x")
    async with host.node() as node:
        await node.create(shut)
        await host.spool.start(shut.id, command.id).append(
            1, b"said"
        )  # a command that was running when the node was killed
    host.faults.pause["runtime.bridge"] = asyncio.Event()
    async with host.node(return_s=0.2, adopt_s=0.05) as node:
        assert node.list() == [Observed(shut.id, 1, running=True)]
        with pytest.raises(Unavailable):
            node.inside(shut.id)
        assert host.spool.exit_of(command.id) is None
        other = spec()
        await node.create(other)
        assert isinstance((await host.run(node, other.id))[-1], Exit)
        if not opens:
            host.faults.errors["runtime.bridge"] = Unavailable("silence")
        host.faults.pause["runtime.bridge"].set()
        if opens:
            await until(lambda: reachable(node, shut.id))
        else:
            await until(lambda: not next(seen for seen in node.list() if seen.id == shut.id).running)
        await until(lambda: host.spool.exit_of(command.id) is not None)


def reachable(node: Supervisor, sandbox_id: SandboxId) -> bool:
    try:
        node.inside(sandbox_id)
    except Unavailable:
        return False
    return True


async def test_whole_sandboxes_are_adopted_and_strays_removed(host: Host) -> None:
    wanted, stray = spec(), new_sandbox_id()
    async with host.node() as node:
        await node.create(wanted)
    host.layers.held.add(stray)
    host.network.held.add(stray)
    async with host.node() as node:
        assert node.list() == [Observed(wanted.id, 1, running=True)]
        assert host.layers.held == {wanted.id} and host.network.held == {wanted.id}
        assert isinstance((await host.run(node, wanted.id))[-1], Exit)
        await node.destroy(wanted.id)
        assert host.left() == {}


async def test_after_a_reboot_sandboxes_are_dead_and_their_files_kept(host: Host) -> None:
    running, half_made, nothing = spec(), spec(), spec()
    async with host.node() as node:
        for one in (running, half_made, nothing):
            await node.create(one)
    for record in host.records.load():
        stage = Stage.RUNNING if record.id == running.id else Stage.CREATING
        host.records.write(replace(moved(record, stage), host_boot="another"))
    for one in (running, half_made, nothing):
        host.runtime.die(one.id)
        del host.runtime.machines[one.id]
    host.layers.held.discard(nothing.id)
    async with host.node() as node:
        seen = {one.id: one for one in node.list()}
        assert set(seen) == {running.id, half_made.id}
        assert {one.cause for one in seen.values()} == {Cause.HOST_RESTART}
        assert host.layers.held == {running.id, half_made.id}
        assert host.network.held == set()


async def test_a_destroy_that_fails_is_shown_and_finished_later(host: Host) -> None:
    async with host.node() as node:
        wanted = spec()
        await node.create(wanted)
        host.faults.errors["runtime.delete"] = Refused("it will not die")
        with pytest.raises(Refused):
            await node.destroy(wanted.id)
        assert not node.list()[0].running
        with pytest.raises(Conflict):
            await node.create(wanted)
        await node.tend()
        assert len(node.list()) == 1
        host.faults.errors.clear()
        await node.tend()
        assert node.list() == [] and host.left() == {}


async def test_what_appears_without_a_record_is_removed_once_it_stays(host: Host) -> None:
    async with host.node() as node:
        kept, stray = spec(), new_sandbox_id()
        await node.create(kept)
        host.layers.held.add(stray)
        await node.tend()
        assert stray in host.layers.held
        await node.tend()
        assert host.layers.held == {kept.id}


async def test_a_failed_undo_is_finished_by_the_next_start(host: Host) -> None:
    async with host.node() as node:
        host.faults.errors.update({"runtime.start": Refused("no"), "layers.destroy": Refused("busy")})
        with pytest.raises((Refused, ExceptionGroup)):
            await node.create(spec())
        assert len(node.list()) == 1
    host.faults.errors.clear()
    async with host.node() as node:
        assert node.list() == [] and host.left() == {}


async def test_generations_are_fenced(host: Host) -> None:
    async with host.node() as node:
        wanted = spec(generation=5)
        first = await node.create(wanted)
        assert await node.create(wanted) == first
        for other in (4, 6):
            with pytest.raises(Conflict):
                await node.create(replace(wanted, generation=other))
        assert node.list() == [Observed(wanted.id, 5, running=True)]


async def test_creates_are_bounded_and_id_ranges_never_shared(host: Host) -> None:
    async with host.node() as node:
        await asyncio.gather(*(node.create(spec()) for _ in range(60)))
        assert host.runtime.peak <= 2 + 2 * 64
        bases = {bundle.id_range.base for bundle in host.runtime.bundles.values() if bundle.id_range}
        assert len(bases) == 60 and all(base % 65_536 == 0 and base >= 1 << 28 for base in bases)


async def test_too_many_waiting_creates_are_sent_away(host: Host) -> None:
    host.faults.pause["layers.create"] = asyncio.Event()
    async with host.node() as node:
        makings = [asyncio.ensure_future(node.create(spec())) for _ in range(512)]
        await asyncio.sleep(0.01)
        with pytest.raises(TooBusy):
            await node.create(spec())
        for making in makings:
            making.cancel()
        host.faults.pause["layers.create"].set()
        await asyncio.wait(makings)
        await until(lambda: node.list() == [])
        assert host.left() == {}


async def test_a_torn_record_is_the_state_before_it(host: Host) -> None:
    wanted = spec()
    async with host.node() as node:
        await node.create(wanted)
    file = host.home / "sandboxes" / f"{wanted.id}.jsonl"
    file.write_bytes(file.read_bytes() + b'\n{"spec": {"id": "sb')
    (record,) = host.records.load()
    assert (record.stage, record.host_boot) == (Stage.RUNNING, host_boot())
    host.records.write(moved(record, Stage.DEAD, Cause.OOM))
    (record,) = host.records.load()
    assert (record.stage, record.cause) == (Stage.DEAD, Cause.OOM)


async def test_the_secret_is_new_for_each_sandbox_and_never_told(host: Host) -> None:
    async with host.node() as node:
        await asyncio.gather(node.create(spec()), node.create(spec()))
        first, second = host.records.load()
        assert first.secret != second.secret and len(first.secret) == 32
        assert first.secret.hex() not in str(node.list())
    assert honest is host.runtime.greet


async def test_no_environment_is_written_down(host: Host) -> None:
    wanted = replace(spec(), env={"TOKEN": "hunter2-secret"})
    async with host.node() as node:
        await node.create(wanted)
        assert b"hunter2" not in b"".join(path.read_bytes() for path in (host.home / "sandboxes").iterdir())


async def test_an_environment_that_an_earlier_version_wrote_down_goes_at_the_start(host: Host) -> None:
    wanted = spec()
    async with host.node() as node:
        await node.create(wanted)
    (path,) = (host.home / "sandboxes").iterdir()
    lines = [json.loads(line) for line in path.read_bytes().splitlines() if line]
    for line in lines:
        line["spec"]["env"] = {"TOKEN": "hunter2-secret"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (record,) = host.records.load()
    assert (record.id, record.stage, record.spec.env) == (wanted.id, Stage.RUNNING, {})
    assert b"hunter2" not in path.read_bytes()
    assert path.stat().st_mode & 0o777 == 0o600
    assert host.records.load() == [record]
