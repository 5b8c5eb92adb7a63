"""A terminal, on the real node: the public API has no route for it yet, so it is tried where the API will stand."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import cast

import pytest
from acceptance.marks import on_both
from acceptance.servers import Server

from skerry import Sandbox
from skerry.model.command import CommandEvent, ExecSpec, Exit, Output, TerminalSize
from skerry.model.ids import CommandId, SandboxId, new_command_id
from skerry.providers.local import LocalProvider
from skerry.seams import Guest

DEADLINE_S = 60.0


@pytest.fixture
async def guest(server: Server, sandbox: Sandbox) -> AsyncIterator[Guest]:
    provider = LocalProvider(server.config.node_socket)
    yield provider.guest(SandboxId(sandbox.id))
    await provider.close()


class Terminal:
    """A command on a PTY, with what it has shown so far."""

    def __init__(self, guest: Guest, command_id: CommandId, events: AsyncGenerator[CommandEvent]) -> None:
        self._guest = guest
        self._id = command_id
        self._events = events
        self.shown = b""
        self.exit: Exit | None = None

    async def shows(self, text: str) -> None:
        """Wait until `text` has been shown since the last call."""
        async with asyncio.timeout(DEADLINE_S):
            while text.encode() not in self.shown:
                event = await anext(self._events)
                assert isinstance(event, Output), (event, self.shown)
                assert event.channel == 1
                self.shown += event.data
        self.shown = self.shown.partition(text.encode())[2]

    async def types(self, text: str) -> None:
        await self._guest.write_stdin(self._id, text.encode())

    async def resize(self, cols: int, rows: int) -> None:
        await self._guest.resize(self._id, TerminalSize(cols, rows))

    async def ends(self) -> Exit:
        async with asyncio.timeout(DEADLINE_S):
            async for event in self._events:
                if isinstance(event, Exit):
                    return event
        raise AssertionError("no end")


async def opened(guest: Guest, cols: int, rows: int, *argv: str) -> Terminal:
    spec = ExecSpec(id=new_command_id(), argv=argv, stdin=True, tty=TerminalSize(cols, rows))
    await guest.exec(spec)
    return Terminal(guest, spec.id, cast(AsyncGenerator[CommandEvent], guest.attach(spec.id)))


WATCHER = """
import os, signal, sys
def told(*_):
    size = os.get_terminal_size(0)
    print(f"told {size.columns}x{size.lines}", flush=True)
signal.signal(signal.SIGWINCH, told)
size = os.get_terminal_size(0)
print(f"opened {size.columns}x{size.lines}", flush=True)
for line in sys.stdin:
    os.system(line)
"""


@on_both
async def test_a_terminal_has_the_size_it_was_given_and_hears_of_a_new_one(guest: Guest) -> None:
    terminal = await opened(guest, 132, 43, "python3", "-c", WATCHER)
    await terminal.shows("opened 132x43")
    await terminal.types("stty size\n")
    await terminal.shows("43 132")
    await terminal.resize(80, 24)
    await terminal.shows("told 80x24")
    await terminal.types("stty size\n")
    await terminal.shows("24 80")


@on_both
async def test_a_size_of_nothing_is_80_by_24(guest: Guest) -> None:
    terminal = await opened(guest, 0, 0, "sh")
    await terminal.types("stty size\n")
    await terminal.shows("24 80")
    await terminal.resize(200, 50)
    await terminal.types("stty size\n")
    await terminal.shows("50 200")
    await terminal.resize(0, 0)
    await terminal.types("stty size\n")
    await terminal.shows("24 80")


@on_both
async def test_a_terminal_is_one_controlling_terminal(guest: Guest) -> None:
    """Job control, interrupt and end of file work as at a console; the exit code is the shell's."""
    terminal = await opened(guest, 80, 24, "bash", "--norc")
    await terminal.types("tty; test -t 0 && test -t 1 && test -t 2 && echo all-$((1+1))\n")
    await terminal.shows("/dev/pts/")
    await terminal.shows("all-2")
    await terminal.types("sh -c 'echo ready-$((3+3)); exec sleep 100'\n")
    await terminal.shows("ready-6")
    await terminal.types("\x03")
    await terminal.types("echo again-$((2+3))\n")
    await terminal.shows("again-5")
    await terminal.types("(exit 7)\n\x04")
    assert (await terminal.ends()).code == 7


@on_both
async def test_a_terminal_outlives_its_viewer(guest: Guest) -> None:
    terminal = await opened(guest, 80, 24, "sh")
    await terminal.types("echo first-$((1+1))\n")
    await terminal.shows("first-2")
    await terminal._events.aclose()  # pyright: ignore[reportPrivateUsage]
    again = Terminal(guest, terminal._id, cast(AsyncGenerator[CommandEvent], guest.attach(terminal._id)))  # pyright: ignore[reportPrivateUsage]
    await again.shows("first-2")  # from the beginning
    await again.types("echo second-$((1+2)); exit 3\n")
    await again.shows("second-3")
    async with aclosing(again._events):  # pyright: ignore[reportPrivateUsage]
        assert (await again.ends()).code == 3
