"""`SbxdGuest` against an sbxd that lies: each lie is a ProtocolError, never a crash, a hang or a huge allocation."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from guest_peer import DEADLINE_S, Peer, connected
from hypothesis import given
from hypothesis import strategies as st

from skerry.guest import answers, inspection, requests
from skerry.guest.frames import FrameType
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.command import CommandCause, ExecSpec, Exit, Lost, Output, TerminalSize
from skerry.model.errors import GuestError, Invalid, ProtocolError, SkerryError
from skerry.model.files import Archived, ArchiveLimits, ChangeKind, FileChange, Skipped
from skerry.model.ids import CommandId

COMMAND = CommandId("cmd_1")
STARTED = {"event": "started", "pid": 7}
EXITED = {"event": "exited", "code": 0, "signal": None, "timeout": False, "offset": 0, "duration_ms": 1}
INFO = {"name": "f", "path": "/f", "type": "file", "size": 3, "mode": 0o644, "uid": 0, "gid": 0, "mtime_ns": 1}

ARCHIVED = {"count": 2, "bytes": 5, "skipped": [{"path": "s", "reason": "it is a socket"}], "skipped_count": 7}
PROCESS = {"pid": 7, "ppid": 1, "uid": 0, "name": "sh", "argv": ["sh", ""], "state": "S", "cpu_ms": 1} | {
    "rss_bytes": 4096,
    "age_ms": 5,
    "command": "cmd_1",
}
PORT = {"port": 80, "address": "127.0.0.1", "family": "ipv4", "uid": 0, "pid": 7}
LIMITS = ArchiveLimits(10, 1000)

Frames = list[tuple[FrameType, bytes | dict[str, Any], int]]


def event(value: dict[str, Any]) -> tuple[FrameType, dict[str, Any], int]:
    return FrameType.EVENT, value, 0


def data(payload: bytes, channel: int = 0) -> tuple[FrameType, bytes, int]:
    return FrameType.DATA, payload, channel


def close(value: dict[str, Any] | None = None) -> tuple[FrameType, dict[str, Any], int]:
    return FrameType.CLOSE, value or {}, 0


async def told(work: Callable[[SbxdGuest], Awaitable[Any]], script: Frames) -> tuple[Any, SkerryError | None]:
    """What a call gives when the next stream is answered with `script`, and how the connection is afterwards."""
    async with connected() as (connection, peer):
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            result = tasks.create_task(_caught(work(SbxdGuest(connection))))
            opened = await peer.expect(FrameType.OPEN)
            for type, payload, channel in script:
                await peer.send(type, opened.stream, payload, channel)
        return result.result(), connection.error


async def _caught(work: Awaitable[Any]) -> Any:
    try:
        return await work
    except SkerryError as error:
        return error


async def run(guest: SbxdGuest) -> list[Any]:
    await guest.exec(ExecSpec(id=COMMAND, shell="x"))
    return [item async for item in guest.attach(COMMAND)]


async def attach_at_ten(guest: SbxdGuest) -> list[Any]:
    return [item async for item in guest.attach(COMMAND, 10)]


async def read(guest: SbxdGuest) -> bytes:
    async with guest.read("/f", 0, 3) as reader:
        return b"".join([chunk async for chunk in reader])


async def listing(guest: SbxdGuest) -> list[str]:
    return [entry.name async for entry in guest.list("/")]


async def first_change(guest: SbxdGuest) -> FileChange:
    async with guest.watch("/d") as changes:
        return await anext(changes)  # type: ignore[arg-type]


async def write(guest: SbxdGuest) -> Any:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"abc"

    return await guest.write("/f", chunks())


async def unpack(guest: SbxdGuest) -> Any:
    async def nothing() -> AsyncIterator[bytes]:
        return
        yield

    return await guest.unpack("/d", nothing(), LIMITS)


async def pack(guest: SbxdGuest) -> tuple[bytes, Archived]:
    async with guest.pack("/d", LIMITS) as archive:
        return b"".join([chunk async for chunk in archive]), archive.result


async def processes(guest: SbxdGuest) -> Any:
    return await guest.processes()


async def ports(guest: SbxdGuest) -> Any:
    return await guest.ports()


def line(value: dict[str, Any]) -> tuple[FrameType, bytes, int]:
    return data(json.dumps(value).encode() + b"\n")


async def test_a_tree_and_what_was_left_out_are_told() -> None:
    result, error = await told(pack, [event({"event": "packing"}), data(b"tar"), close(ARCHIVED)])
    assert result == (b"tar", Archived(2, 5, (Skipped("s", "it is a socket"),), 7))
    assert error is None


async def test_an_archive_that_is_refused_leaves_the_connection_alone() -> None:
    script = [event({"event": "packing"}), data(b"tar"), close({"error": {"code": "io", "message": "killed"}})]
    result, error = await told(pack, script)
    assert isinstance(result, GuestError) and result.guest_code == "io"
    assert error is None


async def test_a_reason_from_inside_is_made_printable() -> None:
    skipped = [{"path": "p", "reason": "\x1b[31mred"}]
    result, _ = await told(unpack, [event({"event": "unpacking"}), close(ARCHIVED | {"skipped": skipped})])
    assert result.skipped == (Skipped("p", "?[31mred"),)


async def test_one_stream_serves_exec_and_the_first_attach() -> None:
    result, error = await told(
        run, [event(STARTED), data(b"out", 1), data(b"err", 2), event(EXITED | {"offset": 6}), close()]
    )
    assert result == [Output(1, 0, b"out"), Output(2, 3, b"err"), Exit(0, None, False, 6, 1)]
    assert error is None


async def test_lost_bytes_are_told_exactly() -> None:
    attached = event({"event": "attached", "pid": 7, "from": 15, "running": True})
    result, _ = await told(attach_at_ten, [attached, data(b"x", 1), event(EXITED | {"offset": 16}), close()])
    assert result == [Lost(10, 5), Output(1, 15, b"x"), Exit(0, None, False, 16, 1)]


async def test_an_error_of_the_operation_leaves_the_connection_alone() -> None:
    result, error = await told(read, [close({"error": {"code": "not_found", "message": "no", "errno": 2}})])
    assert isinstance(result, GuestError) and result.guest_code == "not_found"
    assert error is None


async def test_an_end_whose_status_is_lost_is_told_as_that() -> None:
    result, error = await told(run, [event(STARTED), event(EXITED | {"code": None})])
    (exit,) = result
    assert (exit.code, exit.signal, exit.cause) == (None, None, CommandCause.UNKNOWN)
    assert error is None


async def test_a_control_that_came_too_late_does_not_disturb_the_command() -> None:
    async with connected() as (connection, peer):
        guest = SbxdGuest(connection)
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(guest.exec(ExecSpec(id=COMMAND, shell="x")))
            stream = (await peer.expect(FrameType.OPEN)).stream
            await peer.send(FrameType.EVENT, stream, STARTED)
            await running
            for _ in range(20):  # more than the events that an operation may have
                await guest.resize(COMMAND, TerminalSize())
                await peer.expect(FrameType.CONTROL)
                await peer.send(FrameType.EVENT, stream, {"event": "refused", "error": {"code": "invalid"}})
            await peer.send(FrameType.EVENT, stream, EXITED)
            assert [item async for item in guest.attach(COMMAND)] == [Exit(0, None, False, 0, 1)]
        assert connection.error is None


LIES: dict[str, tuple[Callable[[SbxdGuest], Awaitable[Any]], Frames]] = {
    "no pid": (run, [event({"event": "started"})]),
    "a pid that is no number": (run, [event(STARTED | {"pid": "7"})]),
    "a negative pid": (run, [event(STARTED | {"pid": -1})]),
    "another event than started": (run, [event({"event": "attached", "pid": 7})]),
    "closed without having started": (run, [close()]),
    "output on stdin": (run, [event(STARTED), data(b"x", 0)]),
    "an exit code over 255": (run, [event(STARTED), event(EXITED | {"code": 256})]),
    "a negative exit code": (run, [event(STARTED), event(EXITED | {"code": -1})]),
    "an exit code that is a bool": (run, [event(STARTED), event(EXITED | {"code": True})]),
    "code and signal": (run, [event(STARTED), event(EXITED | {"signal": 9})]),
    "a refusal of what was never asked": (run, [event(STARTED), event({"event": "refused", "error": {}})]),
    "signal 0": (run, [event(STARTED), event(EXITED | {"code": None, "signal": 0})]),
    "signal 65": (run, [event(STARTED), event(EXITED | {"code": None, "signal": 65})]),
    "an end beyond the output": (run, [event(STARTED), data(b"x", 1), event(EXITED | {"offset": 2})]),
    "an end before the output's": (run, [event(STARTED), data(b"x", 1), event(EXITED | {"offset": 0})]),
    "a negative duration": (run, [event(STARTED), event(EXITED | {"duration_ms": -1})]),
    "a duration without bound": (run, [event(STARTED), event(EXITED | {"duration_ms": 1 << 64})]),
    "an end without exit": (run, [event(STARTED), close()]),
    "an unknown event": (run, [event(STARTED), event({"event": "surprise"})]),
    "an offset before the one asked for": (
        attach_at_ten,
        [event({"event": "attached", "pid": 7, "from": 9, "running": True})],
    ),
    "an offset without bound": (
        attach_at_ten,
        [event({"event": "attached", "pid": 7, "from": 1 << 63, "running": True})],
    ),
    "more of a file than asked for": (read, [event(INFO | {"event": "stat"}), data(b"four")]),
    "a file on stderr": (read, [event(INFO | {"event": "stat"}), data(b"x", 2)]),
    "a wrong count of bytes": (read, [event(INFO | {"event": "stat"}), data(b"abc"), close({"bytes": 2})]),
    "no count of bytes": (read, [event(INFO | {"event": "stat"}), close()]),
    "a file without stat": (read, [event({"event": "stat"})]),
    "a size below 0": (write, [close(INFO | {"size": -1})]),
    "a mode of 13 bits": (write, [close(INFO | {"mode": 0o10000})]),
    "a uid of 33 bits": (write, [close(INFO | {"uid": 1 << 32})]),
    "an unknown type of file": (write, [close(INFO | {"type": "portal"})]),
    "a type that is a list": (write, [close(INFO | {"type": ["file"]})]),
    "a relative path": (write, [close(INFO | {"path": "f"})]),
    "a path with NUL": (write, [close(INFO | {"path": "/\0"})]),
    "a path without end": (write, [close(INFO | {"path": "/" + "x" * 9_000})]),
    "a name that is a path": (write, [close(INFO | {"name": "../f"})]),
    "a name of 256 bytes": (write, [close(INFO | {"name": "é" * 128})]),
    "a name that stands for no bytes": (write, [close(INFO | {"name": "\ud800"})]),
    "a target that is a number": (write, [close(INFO | {"target": 1})]),
    "a time out of range": (write, [close(INFO | {"mtime_ns": 1 << 63})]),
    "a listing that is not JSON": (listing, [data(b"x\n")]),
    "a listing of no files": (listing, [data(b"{}\n")]),
    "a listing cut short": (listing, [data(b'{"na'), close({"count": 0})]),
    "a listing with a wrong count": (listing, [close({"count": 1})]),
    "a line without end": (listing, [data(b"x" * 140_000)]),
    "a removal of less than nothing": (lambda guest: guest.remove("/f"), [close({"removed": -1})]),
    "a list of commands that is none": (lambda guest: guest.commands(), [close({"commands": 1})]),
    "a command that is none": (lambda guest: guest.commands(), [close({"commands": [1]})]),
    "more acknowledged than there is": (
        lambda guest: guest.commands(),
        [close({"commands": [{"id": "a", "pid": 1, "running": True, "acked": 2, "offset": 1}]})],
    ),
    "a watch that does not watch": (first_change, [event({"event": "change", "kind": "create", "path": "/d/x"})]),
    "an unknown change": (
        first_change,
        [event({"event": "watching"}), event({"event": "change", "kind": "paint", "path": "/d/x"})],
    ),
    "an archive that was not begun": (pack, [event({"event": "started", "pid": 1})]),
    "an archive on stderr": (pack, [event({"event": "packing"}), data(b"x", 2)]),
    "an archive without a count": (pack, [event({"event": "packing"}), close({})]),
    "fewer skipped than are named": (pack, [event({"event": "packing"}), close(ARCHIVED | {"skipped_count": 0})]),
    "skipped that is no list": (unpack, [event({"event": "unpacking"}), close(ARCHIVED | {"skipped": 1})]),
    "a skipped entry that is none": (unpack, [event({"event": "unpacking"}), close(ARCHIVED | {"skipped": [1]})]),
    "skipped without end": (
        unpack,
        [event({"event": "unpacking"}), close(ARCHIVED | {"skipped": [{"path": "p" * 2000, "reason": "r"}] * 100})],
    ),
    "a process without a pid": (processes, [line(PROCESS | {"pid": 0})]),
    "a process whose arguments are no texts": (processes, [line(PROCESS | {"argv": [1]})]),
    "arguments without end": (processes, [line(PROCESS | {"argv": ["x" * 4000] * 2})]),
    "a state that is a word": (processes, [line(PROCESS | {"state": "sleeping"})]),
    "a state that is a list": (processes, [line(PROCESS | {"state": ["S"]})]),
    "a negative age": (processes, [line(PROCESS | {"age_ms": -1})]),
    "a wrong count of processes": (processes, [line(PROCESS), close({"count": 2})]),
    "port 0": (ports, [line(PORT | {"port": 0})]),
    "an address with a zone": (ports, [line(PORT | {"address": "fe80::1%\x1b[2J", "family": "ipv6"})]),
    "an address that is none": (ports, [line(PORT | {"address": "over there"})]),
    "a family that is none": (ports, [line(PORT | {"family": "unix"})]),
    "a port that does not connect": (lambda guest: guest.open_port(80), [event({"event": "started", "pid": 1})]),
}


@pytest.mark.parametrize(("work", "script"), LIES.values(), ids=LIES.keys())
async def test_a_lie_is_a_protocol_error(work: Callable[[SbxdGuest], Awaitable[Any]], script: Frames) -> None:
    result, error = await told(work, script)
    assert isinstance(result, ProtocolError)
    assert isinstance(error, ProtocolError)


async def test_a_listing_without_end_is_a_protocol_error() -> None:
    block = (json.dumps(PORT).encode() + b"\n") * 3000
    async with connected() as (connection, peer):
        asking = asyncio.ensure_future(_caught(ports(SbxdGuest(connection))))
        stream = (await peer.expect(FrameType.OPEN)).stream
        sent, allowed = 0, 262_144
        while sent * 3000 <= inspection.MOST:
            while allowed < len(block):
                allowed += int.from_bytes((await peer.expect(FrameType.CREDIT)).payload, "little")
            await peer.send(FrameType.DATA, stream, block)
            sent, allowed = sent + 1, allowed - len(block)
        result = await asyncio.wait_for(asking, DEADLINE_S)
    assert isinstance(result, ProtocolError) and "without end" in result.message


async def test_a_port_that_answers_with_events_is_a_protocol_error() -> None:
    async def receive(guest: SbxdGuest) -> bytes:
        return await (await guest.open_port(80)).receive()

    result, error = await told(receive, [event({"event": "connected"}), event({"event": "more"})])
    assert isinstance(result, ProtocolError) and isinstance(error, ProtocolError)


async def test_changes_that_nobody_reads_become_an_overflow() -> None:
    async def late(guest: SbxdGuest) -> list[FileChange]:
        async with guest.watch("/d") as changes:
            await guest.connection.ping()
            seen: list[FileChange] = []
            async for change in changes:
                seen.append(change)
                if change.kind is ChangeKind.OVERFLOW:
                    return seen
        raise AssertionError

    async with connected() as (connection, peer):
        watching = asyncio.ensure_future(late(SbxdGuest(connection)))
        await peer.expect(FrameType.OPEN)
        await peer.send(*event({"event": "watching"})[:1], 1, {"event": "watching"})
        ping = await peer.expect(FrameType.PING)
        long = {"event": "change", "kind": "create", "path": "/d/" + "x" * 250}
        for _ in range(6_000):
            await peer.send(FrameType.EVENT, 1, long)
        await peer.send(FrameType.PONG, 0, ping.payload)
        seen = await asyncio.wait_for(watching, DEADLINE_S)
    assert 1_000 < len(seen) < 4_000
    assert seen[-1] == FileChange(ChangeKind.OVERFLOW, "/d")


json_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
MEMBERS = sorted(
    {
        *INFO,
        *EXITED,
        *STARTED,
        "from",
        "running",
        "kind",
        "target",
        "commands",
        "bytes",
        "count",
        *ARCHIVED,
        *PROCESS,
        *PORT,
    }
)


@given(st.dictionaries(st.sampled_from(MEMBERS), json_value, max_size=12))
def test_any_answer_is_read_or_refused(value: dict[str, Any]) -> None:
    for reader in (
        answers.read_started,
        lambda v: answers.read_attached(v, 0),
        lambda v: answers.read_exit(v, 0),
        answers.read_file_info,
        answers.read_change,
        answers.read_commands,
        answers.read_archived,
        answers.read_process,
        answers.read_port,
    ):
        try:
            reader(value)
        except ProtocolError:
            continue


@pytest.mark.parametrize(("timeout_s", "deadline_ms"), [(1, 1000), (0.5, 500), (0.0001, 1), (1e30, (1 << 53) - 1)])
def test_a_deadline_is_told_in_milliseconds(timeout_s: float, deadline_ms: int) -> None:
    request = requests.execute(ExecSpec(id=COMMAND, argv=("x",), timeout_s=timeout_s))
    assert request == {"op": "exec", "id": "cmd_1", "argv": ["x"], "cwd_fallback": True, "deadline_ms": deadline_ms}


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf")])
def test_a_deadline_that_is_none_is_refused(timeout_s: float) -> None:
    with pytest.raises(Invalid):
        requests.execute(ExecSpec(id=COMMAND, argv=("x",), timeout_s=timeout_s))


async def test_a_command_that_is_too_long_is_refused_and_nothing_is_sent() -> None:
    async with connected() as (connection, peer):
        with pytest.raises(Invalid):
            await SbxdGuest(connection).exec(ExecSpec(id=COMMAND, shell="x" * 300_000))
        await _no_frame(peer, connection)


async def _no_frame(peer: Peer, connection: Any) -> None:
    ping = asyncio.ensure_future(connection.ping())
    frame = await peer.expect(FrameType.PING)
    await peer.send(FrameType.PONG, 0, frame.payload)
    await ping
