"""What every `Guest` does, as tests. Inherit `GuestSuite` and give a fixture `inside` that yields an `Inside`.

Everything here runs against a real sbxd and against `FakeGuest` alike: only common programs, only absolute paths
under `Inside.root`. Each wait has a deadline.
"""

import asyncio
import hashlib
import io
import ipaddress
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

import pytest

from skerry.model.command import ExecSpec, Exit, Output, TerminalSize
from skerry.model.errors import GuestError, Invalid, NotFound
from skerry.model.files import Archived, ArchiveLimits, ChangeKind, FileType
from skerry.model.ids import CommandId, new_command_id
from skerry.seams import Guest

DEADLINE_S = 20.0


@dataclass(frozen=True, slots=True)
class Inside:
    """A guest to test: an existing, empty directory in it, and a way to let something echo on a port inside."""

    guest: Guest
    root: str
    echo_port: Callable[[], Awaitable[int]]


@dataclass(frozen=True, slots=True)
class Ended:
    """All that a command said."""

    stdout: bytes
    stderr: bytes
    exit: Exit


async def follow(guest: Guest, command_id: CommandId, offset: int = 0) -> Ended:
    """Read a command to its end; offsets have to be without a gap."""
    said = {1: b"", 2: b""}
    async with asyncio.timeout(DEADLINE_S):
        async for event in guest.attach(command_id, offset):
            if isinstance(event, Output):
                assert event.offset == offset and event.data
                offset += len(event.data)
                said[event.channel] += event.data
            elif isinstance(event, Exit):
                assert event.offset == offset
                return Ended(said[1], said[2], event)
            else:
                pytest.fail(f"output was lost: {event}")
    pytest.fail("the output ended without an Exit")


async def run(guest: Guest, shell: str | None = None, argv: tuple[str, ...] = (), **more: Any) -> Ended:
    """Run a command to its end."""
    spec = ExecSpec(id=new_command_id(), shell=shell, argv=argv, **more)
    async with asyncio.timeout(DEADLINE_S):
        await guest.exec(spec)
    return await follow(guest, spec.id)


async def start(guest: Guest, shell: str, **more: Any) -> CommandId:
    spec = ExecSpec(id=new_command_id(), shell=shell, **more)
    async with asyncio.timeout(DEADLINE_S):
        await guest.exec(spec)
    return spec.id


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def content(guest: Guest, path: str, offset: int = 0, length: int = -1) -> bytes:
    async with asyncio.timeout(DEADLINE_S), guest.read(path, offset, length) as reader:
        return b"".join([chunk async for chunk in reader])


LIMITS = ArchiveLimits(max_entries=10_000, max_bytes=1 << 30)


def tar(*entries: tuple[str, bytes | None], **more: Any) -> bytes:
    """A tar stream of files, and directories (None), each entry with the members in `more`."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data or b"")
            info.mode, info.type = (0o755, tarfile.DIRTYPE) if data is None else (0o644, tarfile.REGTYPE)
            for member, value in more.items():
                setattr(info, member, value)
            archive.addfile(info, io.BytesIO(data or b""))
    return stream.getvalue()


async def packed(guest: Guest, path: str, limits: ArchiveLimits = LIMITS) -> tuple[bytes, Archived]:
    async with asyncio.timeout(DEADLINE_S), guest.pack(path, limits) as archive:
        stream = b"".join([chunk async for chunk in archive])
        return stream, archive.result


def code_of(caught: pytest.ExceptionInfo[GuestError]) -> str:
    return caught.value.guest_code


class GuestSuite:
    """See the module."""

    # -- commands ----------------------------------------------------------------------------------------------

    async def test_stdout_and_stderr_come_apart_and_the_exit_code_is_told(self, inside: Inside) -> None:
        ended = await run(inside.guest, "echo out; echo err >&2; exit 5")
        assert (ended.stdout, ended.stderr) == (b"out\n", b"err\n")
        assert (ended.exit.code, ended.exit.signal, ended.exit.timed_out) == (5, None, False)

    async def test_argv_runs_without_a_shell(self, inside: Inside) -> None:
        ended = await run(inside.guest, argv=("echo", "$HOME", "a b"))
        assert ended.stdout == b"$HOME a b\n"

    async def test_output_is_exact_to_the_byte(self, inside: Inside) -> None:
        ended = await run(inside.guest, r"printf '\000\377\303'; printf '\251\n'")
        assert ended.stdout == b"\x00\xff\xc3\xa9\n"

    async def test_a_program_that_is_not_there_is_not_found(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await run(inside.guest, argv=("no-such-program",))
        assert code_of(caught) == "not_found"

    async def test_a_directory_that_is_not_there_is_told_as_cwd(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await run(inside.guest, argv=("pwd",), cwd=f"{inside.root}/none")
        assert code_of(caught) == "cwd"

    async def test_the_working_directory_and_the_environment_are_as_asked_for(self, inside: Inside) -> None:
        ended = await run(inside.guest, "pwd; echo $SKERRY_TEST", cwd=inside.root, env={"SKERRY_TEST": "x y"})
        assert ended.stdout.decode() == f"{inside.root}\nx y\n"

    async def test_the_same_id_runs_once(self, inside: Inside) -> None:
        spec = ExecSpec(id=new_command_id(), shell="echo once")
        await inside.guest.exec(spec)
        await inside.guest.exec(spec)
        assert (await follow(inside.guest, spec.id)).stdout == b"once\n"
        await inside.guest.exec(spec)

    async def test_a_command_without_stdin_reads_the_end_at_once(self, inside: Inside) -> None:
        ended = await run(inside.guest, "cat")
        assert (ended.stdout, ended.exit.code) == (b"", 0)

    async def test_stdin_is_written_and_closed(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "cat", stdin=True)
        await inside.guest.write_stdin(command_id, b"one\n")
        await inside.guest.write_stdin(command_id, b"two\n")
        await inside.guest.close_stdin(command_id)
        ended = await follow(inside.guest, command_id)
        assert (ended.stdout, ended.exit.code) == (b"one\ntwo\n", 0)

    async def test_a_signal_is_told_as_a_signal(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "sleep 60")
        await inside.guest.signal(command_id, 15)
        ended = await follow(inside.guest, command_id)
        assert (ended.exit.code, ended.exit.signal, ended.exit.timed_out) == (None, 15, False)

    async def test_a_kill_ends_it(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "sleep 60; echo no")
        await inside.guest.kill(command_id)
        ended = await follow(inside.guest, command_id)
        assert (ended.exit.signal, ended.stdout) == (9, b"")

    async def test_a_deadline_ends_it_and_keeps_what_it_said(self, inside: Inside) -> None:
        ended = await run(inside.guest, "echo before; sleep 60", timeout_s=0.3)
        assert ended.stdout == b"before\n"
        assert (ended.exit.timed_out, ended.exit.signal) == (True, 9)

    async def test_acting_on_an_ended_command_does_nothing(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "exit 3", stdin=True)
        assert (await follow(inside.guest, command_id)).exit.code == 3
        await inside.guest.signal(command_id, 9)
        await inside.guest.kill(command_id)
        await inside.guest.write_stdin(command_id, b"late")
        await inside.guest.close_stdin(command_id)

    async def test_an_unknown_command_is_not_found(self, inside: Inside) -> None:
        with pytest.raises(NotFound):
            await follow(inside.guest, new_command_id())
        with pytest.raises(NotFound):
            await inside.guest.signal(new_command_id(), 15)

    async def test_a_second_reader_goes_on_where_the_first_left(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "echo one; read x; echo two", stdin=True)
        events = cast("Any", inside.guest.attach(command_id))
        async with aclosing(events), asyncio.timeout(DEADLINE_S):
            first = await anext(events)
        assert isinstance(first, Output) and first.data == b"one\n"
        await inside.guest.write_stdin(command_id, b"\n")
        assert (await follow(inside.guest, command_id, offset=4)).stdout == b"two\n"

    async def test_an_ended_command_can_be_asked_for_its_end_again(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "echo x; exit 7")
        await follow(inside.guest, command_id)
        again = await follow(inside.guest, command_id, offset=2)
        assert (again.stdout, again.exit.code) == (b"", 7)

    async def test_bytes_before_a_reader_s_offset_are_never_shown(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "echo 123456789; read x", stdin=True)
        events = cast("Any", inside.guest.attach(command_id))
        async with aclosing(events), asyncio.timeout(DEADLINE_S):
            await anext(events)
        await inside.guest.close_stdin(command_id)
        assert (await follow(inside.guest, command_id, offset=4)).stdout == b"56789\n"

    async def test_a_terminal_has_the_size_it_was_given_and_then_the_new_one(self, inside: Inside) -> None:
        guest = inside.guest
        command_id = await start(guest, "stty size; read x; stty size", tty=TerminalSize(132, 43))
        events = cast("Any", guest.attach(command_id))
        seen = b""
        async with aclosing(events), asyncio.timeout(DEADLINE_S):
            async for event in events:
                if isinstance(event, Output):
                    assert event.channel == 1
                    seen += event.data
                    if b"43 132" in seen and b"24 80" not in seen and not seen.endswith(b"sent"):
                        await guest.resize(command_id, TerminalSize(0, 0))
                        await guest.write_stdin(command_id, b"\n")
                        seen += b"sent"
        assert b"43 132" in seen and b"24 80" in seen

    async def test_a_hundred_commands_at_once_do_not_mix(self, inside: Inside) -> None:
        async def one(number: int) -> bytes:
            return (await run(inside.guest, f"echo {number}; echo {number}")).stdout

        said = await asyncio.gather(*(one(number) for number in range(100)))
        assert said == [f"{number}\n{number}\n".encode() for number in range(100)]

    async def test_bad_requests_are_refused_before_they_are_sent(self, inside: Inside) -> None:
        for spec in (
            ExecSpec(id=new_command_id()),
            ExecSpec(id=new_command_id(), argv=("a",), shell="b"),
            ExecSpec(id=new_command_id(), argv=("nul\0",)),
            ExecSpec(id=new_command_id(), shell="x", cwd="relative"),
            ExecSpec(id=new_command_id(), shell="x", env={"A=B": "c"}),
            ExecSpec(id=new_command_id(), shell="x", timeout_s=0),
            ExecSpec(id=CommandId("../x"), shell="x"),
        ):
            with pytest.raises(Invalid):
                await inside.guest.exec(spec)

    # -- files -------------------------------------------------------------------------------------------------

    async def test_a_file_is_written_with_its_parents_and_read_back(self, inside: Inside) -> None:
        path = f"{inside.root}/a/b/file"
        info = await inside.guest.write(path, pieces(b"hello ", b"", b"world"), mode=0o640)
        assert (info.name, info.path, info.type) == ("file", path, FileType.FILE)
        assert (info.size_bytes, info.mode) == (11, 0o640)
        assert await content(inside.guest, path) == b"hello world"

    async def test_a_range_of_a_file_is_read(self, inside: Inside) -> None:
        path = f"{inside.root}/range"
        await inside.guest.write(path, pieces(b"0123456789"))
        assert await content(inside.guest, path, 3, 4) == b"3456"
        assert await content(inside.guest, path, 8, 100) == b"89"
        assert await content(inside.guest, path, 100) == b""
        assert await content(inside.guest, path, 0, 0) == b""

    async def test_an_open_file_tells_what_it_is(self, inside: Inside) -> None:
        path = f"{inside.root}/told"
        written = await inside.guest.write(path, pieces(b"12345"))
        async with inside.guest.read(path) as reader:
            assert reader.info == written

    async def test_megabytes_arrive_as_they_were_sent(self, inside: Inside) -> None:
        block = bytes(range(256)) * 1024
        path = f"{inside.root}/large"
        await inside.guest.write(path, pieces(*[block] * 20, b"end"))
        got = await content(inside.guest, path)
        assert hashlib.sha256(got).digest() == hashlib.sha256(block * 20 + b"end").digest()

    async def test_an_empty_file_is_a_file(self, inside: Inside) -> None:
        info = await inside.guest.write(f"{inside.root}/empty", pieces())
        assert (info.size_bytes, info.type) == (0, FileType.FILE)
        assert await content(inside.guest, f"{inside.root}/empty") == b""

    async def test_a_write_that_cannot_be_is_refused_while_its_source_is_silent(self, inside: Inside) -> None:
        await inside.guest.write(f"{inside.root}/file", pieces(b"x"))

        async def silent() -> AsyncIterator[bytes]:
            yield b"new"
            await asyncio.Event().wait()

        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(GuestError) as caught:
                await inside.guest.write(f"{inside.root}/file/below", silent())
        assert caught.value.guest_code == "not_a_directory"

    async def test_a_write_that_breaks_off_leaves_the_old_file_and_nothing_else(self, inside: Inside) -> None:
        path = f"{inside.root}/kept"
        await inside.guest.write(path, pieces(b"old"))

        async def broken() -> AsyncIterator[bytes]:
            yield b"new"
            raise ConnectionResetError("the client went away")

        with pytest.raises(ConnectionResetError):
            await inside.guest.write(path, broken())
        assert await content(inside.guest, path) == b"old"
        # The next answer may overtake the clearing up, a few answers later it is done.
        async with asyncio.timeout(DEADLINE_S):
            while await collect(inside.guest, inside.root) != ["kept"]:
                pass

    async def test_create_only_never_replaces(self, inside: Inside) -> None:
        path = f"{inside.root}/once"
        await inside.guest.write(path, pieces(b"1"), create_only=True)
        with pytest.raises(GuestError) as caught:
            await inside.guest.write(path, pieces(b"2"), create_only=True)
        assert code_of(caught) == "exists"
        assert await content(inside.guest, path) == b"1"

    async def test_replacing_a_file_keeps_its_mode(self, inside: Inside) -> None:
        path = f"{inside.root}/mode"
        await inside.guest.write(path, pieces(b"1"), mode=0o600)
        assert (await inside.guest.write(path, pieces(b"2"))).mode == 0o600

    async def test_what_is_not_there_is_not_found(self, inside: Inside) -> None:
        path = f"{inside.root}/none"
        for attempt in (
            content(inside.guest, path),
            inside.guest.stat(path),
            inside.guest.remove(path),
            inside.guest.move(path, path + "2"),
            collect(inside.guest, path),
        ):
            with pytest.raises(GuestError) as caught:
                await attempt
            assert code_of(caught) == "not_found"

    async def test_a_directory_is_no_file(self, inside: Inside) -> None:
        for attempt in (content(inside.guest, inside.root), inside.guest.write(inside.root, pieces(b"x"))):
            with pytest.raises(GuestError) as caught:
                await attempt
            assert code_of(caught) in ("is_a_directory", "not_a_file")

    async def test_odd_names_come_back_as_they_are(self, inside: Inside) -> None:
        names = {"😀 emoji", "new\nline", "quote\"'\\", "-dash", "%41", "é", "e\u0301", "n" * 255, "bad\udcff\udc80"}
        for name in names:
            info = await inside.guest.write(f"{inside.root}/{name}", pieces(b"x"))
            assert info.name == name
        assert set(await collect(inside.guest, inside.root)) == names

    async def test_a_name_that_is_too_long_is_told_as_that(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await inside.guest.write(f"{inside.root}/{'n' * 256}", pieces(b"x"))
        assert code_of(caught) == "name_too_long"

    async def test_thousands_of_entries_are_listed(self, inside: Inside) -> None:
        count, at_once = 1500, 500  # sbxd has at most 1024 streams
        for start in range(0, count, at_once):
            numbers = range(start, start + at_once)
            await asyncio.gather(*(inside.guest.write(f"{inside.root}/{number:04}", pieces(b"")) for number in numbers))
        assert sorted(await collect(inside.guest, inside.root)) == [f"{number:04}" for number in range(count)]

    async def test_directories_are_made_with_and_without_parents(self, inside: Inside) -> None:
        info = await inside.guest.mkdir(f"{inside.root}/a/b", mode=0o700)
        assert (info.type, info.mode) == (FileType.DIR, 0o700)
        assert (await inside.guest.mkdir(f"{inside.root}/a/b")).type is FileType.DIR
        with pytest.raises(GuestError) as caught:
            await inside.guest.mkdir(f"{inside.root}/a/b", parents=False)
        assert code_of(caught) == "exists"
        with pytest.raises(GuestError) as caught:
            await inside.guest.mkdir(f"{inside.root}/x/y", parents=False)
        assert code_of(caught) == "not_found"

    async def test_a_file_moves_and_is_overwritten_only_when_that_is_asked_for(self, inside: Inside) -> None:
        first, second = f"{inside.root}/1", f"{inside.root}/2"
        await inside.guest.write(first, pieces(b"1"))
        await inside.guest.write(second, pieces(b"2"))
        with pytest.raises(GuestError) as caught:
            await inside.guest.move(first, second, overwrite=False)
        assert code_of(caught) == "exists"
        assert (await inside.guest.move(first, second)).path == second
        assert await content(inside.guest, second) == b"1"
        assert await collect(inside.guest, inside.root) == ["2"]

    async def test_a_tree_is_removed_only_recursively(self, inside: Inside) -> None:
        await inside.guest.write(f"{inside.root}/tree/a/b", pieces(b"x"))
        with pytest.raises(GuestError) as caught:
            await inside.guest.remove(f"{inside.root}/tree")
        assert code_of(caught) == "not_empty"
        assert await inside.guest.remove(f"{inside.root}/tree", recursive=True) == 3
        assert await collect(inside.guest, inside.root) == []

    async def test_a_watch_tells_what_changes(self, inside: Inside) -> None:
        async with asyncio.timeout(DEADLINE_S), inside.guest.watch(inside.root) as changes:
            await inside.guest.mkdir(f"{inside.root}/made")
            await inside.guest.remove(f"{inside.root}/made")
            seen: list[tuple[ChangeKind, str]] = []
            async for change in changes:
                seen.append((change.kind, change.path))
                if change.kind is ChangeKind.REMOVE:
                    break
        assert (ChangeKind.CREATE, f"{inside.root}/made") in seen
        assert (ChangeKind.REMOVE, f"{inside.root}/made") in seen

    async def test_paths_have_to_be_absolute_and_without_nul(self, inside: Inside) -> None:
        for path in ("relative", "", "/nul\0", "/high\ud800surrogate"):
            with pytest.raises(Invalid):
                await inside.guest.stat(path)

    # -- trees -------------------------------------------------------------------------------------------------

    async def test_a_tree_goes_up_and_comes_down(self, inside: Inside) -> None:
        up = tar(("a", None), ("a/empty", None), ("a/file", b"x" * 700_000), ("implied/dir/run", b"#!"), mode=0o750)
        told = await inside.guest.unpack(f"{inside.root}/new/tree", pieces(up[:1000], up[1000:]), LIMITS)
        assert (told.count, told.size_bytes, told.skipped, told.skipped_count) == (4, 700_002, (), 0)
        assert await content(inside.guest, f"{inside.root}/new/tree/a/file") == b"x" * 700_000
        assert (await inside.guest.stat(f"{inside.root}/new/tree/implied/dir/run")).mode == 0o750
        down, told = await packed(inside.guest, f"{inside.root}/new/tree")
        assert (told.count, told.size_bytes, told.skipped_count) == (7, 700_002, 0)
        with tarfile.open(fileobj=io.BytesIO(down)) as archive:
            found = {info.name: info for info in archive}
        assert set(found) == {"a", "a/empty", "a/file", "implied", "implied/dir", "implied/dir/run", "."}
        assert found["a/file"].size == 700_000 and found["a/empty"].isdir()

    async def test_times_are_kept(self, inside: Inside) -> None:
        up = tar(("d", None), ("d/f", b"x"), mtime=1_500_000_000.5)
        await inside.guest.unpack(inside.root, pieces(up), LIMITS)
        assert (await inside.guest.stat(f"{inside.root}/d/f")).mtime_ns == 1_500_000_000_500_000_000
        assert (await inside.guest.stat(f"{inside.root}/d")).mtime_ns == 1_500_000_000_500_000_000

    async def test_entries_that_lead_out_are_skipped_with_a_reason_and_the_rest_is_there(self, inside: Inside) -> None:
        up = tar(("before", b"1"), ("/etc/evil", b"x"), ("../evil", b"x"), ("a/../../evil", b"x"), ("after", b"2"))
        told = await inside.guest.unpack(f"{inside.root}/into", pieces(up), LIMITS)
        assert [each.path for each in told.skipped] == ["/etc/evil", "../evil", "a/../../evil"]
        assert all(each.reason for each in told.skipped) and (told.count, told.skipped_count) == (2, 3)
        assert sorted(await collect(inside.guest, f"{inside.root}/into")) == ["after", "before"]
        assert await collect(inside.guest, inside.root) == ["into"]

    async def test_devices_and_fifos_are_never_made(self, inside: Inside) -> None:
        for kind in (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE):
            told = await inside.guest.unpack(inside.root, pieces(tar(("x", b""), type=kind)), LIMITS)
            assert (told.count, told.skipped_count) == (0, 1)
        assert await collect(inside.guest, inside.root) == []

    async def test_an_archive_that_ends_early_is_told_and_keeps_what_was_complete(self, inside: Inside) -> None:
        up = tar(("first", b"1" * 500), ("second", b"2" * 500))
        with pytest.raises(GuestError) as caught:
            await inside.guest.unpack(inside.root, pieces(up[:1800]), LIMITS)
        assert code_of(caught) == "invalid"
        assert await collect(inside.guest, inside.root) == ["first"]

    async def test_what_is_no_archive_is_told(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await inside.guest.unpack(inside.root, pieces(b"no tar" * 500), LIMITS)
        assert code_of(caught) == "invalid"

    async def test_an_upload_of_a_tree_that_breaks_off_goes_through(self, inside: Inside) -> None:
        async def broken() -> AsyncIterator[bytes]:
            yield tar(("file", b"x" * 5000))[:2000]
            raise ConnectionResetError("the client went away")

        with pytest.raises(ConnectionResetError):
            await inside.guest.unpack(inside.root, broken(), LIMITS)
        async with asyncio.timeout(DEADLINE_S):
            while await collect(inside.guest, inside.root):
                pass

    async def test_more_than_the_limits_ends_with_limit(self, inside: Inside) -> None:
        up = tar(*((str(number), b"12345") for number in range(10)))
        for limits in (ArchiveLimits(5, 1000), ArchiveLimits(1000, 7)):
            with pytest.raises(GuestError) as caught:
                await inside.guest.unpack(f"{inside.root}/into", pieces(up), limits)
            assert code_of(caught) == "limit"
        await inside.guest.unpack(f"{inside.root}/all", pieces(up), LIMITS)
        with pytest.raises(GuestError) as caught:
            await packed(inside.guest, f"{inside.root}/all", ArchiveLimits(5, 1000))
        assert code_of(caught) == "limit"
        _, told = await packed(inside.guest, f"{inside.root}/all", ArchiveLimits(1000, 7))
        assert (told.size_bytes, told.skipped_count) == (5, 9)

    async def test_only_a_directory_is_packed(self, inside: Inside) -> None:
        await inside.guest.write(f"{inside.root}/file", pieces(b"x"))
        for name, code in (("none", "not_found"), ("file", "not_a_directory")):
            with pytest.raises(GuestError) as caught:
                await packed(inside.guest, f"{inside.root}/{name}")
            assert code_of(caught) == code
        with pytest.raises(GuestError) as caught:
            await inside.guest.unpack(f"{inside.root}/file", pieces(tar(("x", b""))), LIMITS)
        assert code_of(caught) == "not_a_directory"

    async def test_touching_makes_a_file_once_and_then_its_time(self, inside: Inside) -> None:
        path = f"{inside.root}/new/file"
        made = await inside.guest.set_attributes(path, now=True, create=True)
        assert (made.size_bytes, made.type) == (0, FileType.FILE)
        await inside.guest.write(path, pieces(b"kept"))
        told = await inside.guest.set_attributes(path, mtime_ns=1_234_567_890_123_456_789, create=True)
        assert (told.mtime_ns, told.size_bytes) == (1_234_567_890_123_456_789, 4)
        told = await inside.guest.set_attributes(path, mode=0o600)
        assert (told.mtime_ns, told.mode) == (1_234_567_890_123_456_789, 0o600)
        with pytest.raises(GuestError):
            await inside.guest.set_attributes(f"{inside.root}/none", now=True)
        with pytest.raises(Invalid):
            await inside.guest.set_attributes(path, now=True, mtime_ns=1)

    # -- processes and ports -----------------------------------------------------------------------------------

    async def test_a_running_command_is_among_the_processes(self, inside: Inside) -> None:
        command_id = await start(inside.guest, "sleep 61; :")
        found = [each for each in await inside.guest.processes() if each.command_id == command_id]
        assert all(each.pid > 1 and each.uid == 0 for each in found)
        assert any(each.argv for each in found)  # of a child that is just being made it may be empty
        await inside.guest.kill(command_id)
        await follow(inside.guest, command_id)
        assert command_id not in {each.command_id for each in await inside.guest.processes()}

    async def test_a_listening_port_is_among_the_ports(self, inside: Inside) -> None:
        port = await inside.echo_port()
        [found] = [each for each in await inside.guest.ports() if each.port == port]
        # A server that listens everywhere may be one of IPv6, which takes IPv4 as well.
        address = ipaddress.ip_address(found.address)
        assert found.family == f"ipv{address.version}"
        assert address.is_loopback or address.is_unspecified

    # -- ports -------------------------------------------------------------------------------------------------

    async def test_a_port_carries_bytes_both_ways_and_each_end_of_file(self, inside: Inside) -> None:
        port = await inside.echo_port()
        stream = await inside.guest.open_port(port)
        block = bytes(range(256)) * 4096

        async def send() -> None:
            await stream.send(block)
            await stream.send_eof()

        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as tasks:
            tasks.create_task(send())
            got = b""
            while data := await stream.receive():
                got += data
        assert got == block
        assert await stream.receive() == b""
        await stream.close()
        await stream.close()

    async def test_a_port_on_which_nothing_listens_is_refused(self, inside: Inside) -> None:
        with pytest.raises(GuestError) as caught:
            await inside.guest.open_port(9)
        assert code_of(caught) == "refused"


async def collect(guest: Guest, path: str) -> list[str]:
    """The names in a directory."""
    async with asyncio.timeout(DEADLINE_S):
        return [entry.name async for entry in guest.list(path)]
