"""Commands: what they print, how they end, and what is done to them. A part of `GuestSuite`."""

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest

from skerry.model.command import ExecSpec, Output, TerminalSize
from skerry.model.errors import GuestError, Invalid, NotFound
from skerry.model.ids import CommandId, new_command_id
from skerry.testing.guest_suite.inside import DEADLINE_S, Inside, code_of, follow, run, start


class CommandTests:
    """See `GuestSuite`."""

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
