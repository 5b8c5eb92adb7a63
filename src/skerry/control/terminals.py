"""Terminals: commands with a PTY, which run until they end by themselves, are closed, or their sandbox ends.

A terminal makes no sandbox `active`: that says that a program of the API works, and a terminal mostly waits for
a person.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from skerry.control import commands, sandboxes, sizes
from skerry.control.commands import Decided
from skerry.control.deps import Deps
from skerry.model.command import Command, CommandKind, CommandStatus, ExecSpec, Keep, TerminalSize
from skerry.model.errors import NotFound
from skerry.model.ids import AccountId, new_command_id
from skerry.model.sandbox import Sandbox

LIST_LIMIT = 1000
_TERM = "xterm-256color"
_SHELLS = (("bash",), ("sh",))  # the first that there is; on a terminal both are interactive


@dataclass(frozen=True, slots=True)
class NewTerminal:
    """`argv`, else `shell`, else an interactive shell: bash, or sh where there is none."""

    argv: tuple[str, ...] = ()
    shell: str | None = None
    size: TerminalSize = field(default_factory=TerminalSize)
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    user: str | None = None
    name: str | None = None


async def open_terminal(deps: Deps, account_id: AccountId, sandbox_id: str, wanted: NewTerminal) -> Command:
    """Start a terminal. One whose program cannot be started is `failed`, as any command.

    Raises:
        NotFound, Conflict: The sandbox is not there, or cannot run. A stopped one is resumed, with its errors.
        Invalid: What is to be run, or its environment, is too long.
        Unavailable: The node stays away; whether it runs is found out and recorded later.
    """

    async def record(command: Command) -> bool:
        return await deps.store.add_command(command) == command.id

    async def work(sandbox: Sandbox) -> Command:
        started = await commands.begin(deps, _decide(deps, sandbox, wanted), record)
        assert started is not None  # nothing else stands for it: it was asked for once
        return started.command

    return await sandboxes.give(deps, account_id, sandbox_id, work)


async def list_page(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, ended: bool, limit: int
) -> Sequence[Command]:
    """The terminals of a sandbox that run, with `ended` those that have ended too; newest first."""
    sandbox = await sandboxes.get(deps, account_id, sandbox_id)
    running = None if ended else True
    return await deps.store.list_commands(sandbox_id=sandbox.id, running=running, terminals=True, limit=limit)


async def get(deps: Deps, account_id: AccountId, sandbox_id: str, terminal_id: str) -> Command:
    """Raises NotFound when this sandbox of this account has no such terminal."""
    command = await commands.get(deps, account_id, terminal_id)
    if command.sandbox_id != sandbox_id or command.terminal is None:
        raise NotFound(f"Sandbox '{sandbox_id[:64]}' has no terminal '{terminal_id[:64]}'.")
    return command


async def close(deps: Deps, account_id: AccountId, sandbox_id: str, terminal_id: str) -> None:
    """End a terminal with all that runs in it. Ended already: nothing happens. Its record and output stay."""
    terminal = await get(deps, account_id, sandbox_id, terminal_id)
    await commands.kill(deps, account_id, terminal.id)


async def resize(deps: Deps, account_id: AccountId, sandbox_id: str, terminal_id: str, size: TerminalSize) -> Command:
    """Give a terminal another size; whoever did so last decides for all that look at it. Ended: nothing happens."""
    return await resize_command(deps, await get(deps, account_id, sandbox_id, terminal_id), size)


async def resize_command(deps: Deps, terminal: Command, size: TerminalSize) -> Command:
    """As `resize`, for a terminal that was looked up."""
    size = _size(size)
    if terminal.status is CommandStatus.RUNNING:
        await deps.provider.guest(terminal.sandbox_id).resize(terminal.id, size)
        await deps.store.resize_terminal(terminal.id, size)
    return await deps.store.get_command(terminal.id)


def _size(size: TerminalSize) -> TerminalSize:
    return TerminalSize(size.cols or 80, size.rows or 24)


def _decide(deps: Deps, sandbox: Sandbox, wanted: NewTerminal) -> Decided:
    command = Command(
        id=new_command_id(),
        sandbox_id=sandbox.id,
        account_id=sandbox.account_id,
        command=wanted.shell or shlex.join(wanted.argv or _SHELLS[0]),
        status=CommandStatus.RUNNING,
        working_directory=wanted.cwd or commands.WORKSPACE,
        timeout_s=None,
        started_at=deps.clock.now(),
        takes_input=True,
        terminal=_size(wanted.size),
        name=wanted.name,
        kind=CommandKind.TERMINAL,
    )
    env = {**sandboxes.BASE_ENV, "TERM": _TERM, **sandbox.env, **wanted.env}
    programs = [wanted.argv] if wanted.argv or wanted.shell is not None else _SHELLS
    specs = [
        ExecSpec(
            id=command.id,
            argv=argv,
            shell=wanted.shell if not argv else None,
            cwd=wanted.cwd,
            env=env,
            user=wanted.user,
            stdin=True,
            tty=command.terminal,
            keep=Keep.TAIL,
        )
        for argv in programs
    ]
    sizes.check_command(specs[0])
    return Decided(command, specs)
