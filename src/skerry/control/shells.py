"""Shell sessions: directory and exported variables persist from one command to the next. Nothing runs in between.

A session belongs to one command at a time: which one is on record before it starts, so that what it leaves is taken in
by whoever comes next when this process dies meanwhile.
"""

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from skerry.control import commands, sandboxes
from skerry.control.commands import NewCommand
from skerry.control.deps import Deps
from skerry.control.outputs import Captured
from skerry.control.shell_state import DUMP_LIMIT, dump_path, environment, fold, read_dump, wrap
from skerry.model.command import Command, CommandStatus
from skerry.model.errors import Conflict, GuestError, Invalid, NotFound, SandboxGone
from skerry.model.ids import AccountId, ShellId, is_id, new_shell_id
from skerry.model.sandbox import Sandbox
from skerry.model.shell import ShellSession
from skerry.model.shell import ShellState as State

_TEXT_LIMIT = 98_304  # bytes of a command's text: an argument has at most 131,072, quoted and with its wrapper
_READ_S = 10
# Another process may be at work on what a command left: for so long after its end, or after a claim without a command.
_HANDOVER_S = 20


@dataclass(frozen=True, slots=True)
class ShellResult:
    """How a command of a session ended. `saved`: its directory and variables are those of the next one."""

    session: ShellSession
    command: Command
    captured: Captured
    saved: bool


async def create(deps: Deps, account_id: AccountId, sandbox_id: str) -> ShellSession:
    """A session that starts in /workspace with the sandbox's environment.

    Raises:
        NotFound, Conflict: As `sandboxes.awake`; `too_many_sessions`: delete some.
    """
    sandbox = await sandboxes.awake(deps, account_id, sandbox_id)
    now = deps.clock.now()
    session = ShellSession(new_shell_id(), sandbox.id, account_id, created_at=now, used_at=now)
    await deps.store.add_shell(session)
    return session


async def get(deps: Deps, account_id: AccountId, session_id: str) -> ShellSession:
    """Raises NotFound when there is none, or it is another account's, or its sandbox was destroyed."""
    if is_id(session_id, "ses"):
        session = await deps.store.get_shell(ShellId(session_id))
        if session.account_id == account_id:
            return session
    raise NotFound(f"No session '{session_id[:64]}'.")


async def list_of(deps: Deps, account_id: AccountId, sandbox_id: str) -> Sequence[ShellSession]:
    """Oldest first."""
    sandbox = await sandboxes.get(deps, account_id, sandbox_id)
    return await deps.store.list_shells(sandbox.id)


async def delete(deps: Deps, account_id: AccountId, session_id: str) -> None:
    """End a session, and its command if one runs.

    Raises:
        NotFound: As for `get`.
    """
    session = await get(deps, account_id, session_id)
    await deps.store.delete_shell(session.id)
    if session.command_id is not None:
        try:
            await commands.kill(deps, account_id, session.command_id)
        except (NotFound, SandboxGone, GuestError):
            return  # it has ended, or never began


async def execute(
    deps: Deps, account_id: AccountId, session_id: str, text: str, timeout_s: int | None = None
) -> ShellResult:
    """Run a command in a session and wait for its end. A caller that leaves ends the waiting, not the command.

    Raises:
        NotFound, Conflict: As `get` and `sandboxes.awake`; `session_busy`: its last command still runs.
        Invalid: The text or the deadline is too long.
        Unavailable: The node stays away; what the command leaves is taken in later.
    """
    if len(text.encode("utf-8", "surrogatepass")) > _TEXT_LIMIT:
        raise Invalid(
            f"'command' is longer than {_TEXT_LIMIT} bytes. Write it to a file and run that.", field="command"
        )
    session = await get(deps, account_id, session_id)
    if session.id in deps.shells:
        raise _busy(session)
    deps.shells.add(session.id)
    running = deps.tasks.spawn(_execute(deps, session, text, timeout_s), name=f"session {session.id}")
    return await asyncio.shield(running)


async def _execute(deps: Deps, session: ShellSession, text: str, timeout_s: int | None) -> ShellResult:
    async def work(sandbox: Sandbox) -> ShellResult:
        return await _run(deps, sandbox, session, text, timeout_s)

    try:
        return await sandboxes.give(deps, session.account_id, session.sandbox_id, work)
    finally:
        deps.shells.discard(session.id)


async def _run(deps: Deps, sandbox: Sandbox, session: ShellSession, text: str, timeout_s: int | None) -> ShellResult:
    session = await _ready(deps, sandbox, session)
    base = {**sandboxes.BASE_ENV, **sandbox.env}
    token = secrets.token_hex(16)
    wanted = NewCommand(
        argv=wrap(text, session.state, token),
        timeout_s=timeout_s,
        env=environment(session.state, base),
        shown=text,
    )
    decided = commands.decide(deps, sandbox, wanted)
    shown = replace(decided.command, working_directory=_shown(session.state.cwd))
    decided = replace(decided, command=shown)

    async def record(command: Command) -> bool:
        if not await deps.store.claim_shell(session.id, command.id, token, deps.clock.now()):
            raise _busy(await deps.store.get_shell(session.id))
        try:
            return await deps.store.add_command(command) == command.id
        except Conflict:  # it was stopped under us
            await deps.store.release_shell(session.id, command.id, None)
            raise

    started = await commands.begin(deps, decided, record, collect=True)
    assert started is not None
    result = await started.watching
    state = await _take_in(deps, session, token, base)
    await deps.store.release_shell(session.id, result.command.id, state)
    ended = session if state is None else replace(session, state=state)
    return ShellResult(ended, result.command, result.captured, state is not None)


async def _ready(deps: Deps, sandbox: Sandbox, session: ShellSession) -> ShellSession:
    """The session, with what a command left that nobody waited for.

    Raises:
        Conflict: A command has it.
    """
    session = await deps.store.get_shell(session.id)
    if session.command_id is None or session.token is None:
        return session
    state: State | None = None
    try:
        command = (await commands.look_up(deps, session.account_id, session.command_id)).command
    except NotFound:  # claimed, and never recorded
        if not deps.sole and deps.clock.now() < session.used_at + timedelta(seconds=_HANDOVER_S):
            raise _busy(session) from None
    else:
        if command.status is CommandStatus.RUNNING or _in_other_hands(deps, command):
            raise _busy(session)
        state = await _take_in(deps, session, session.token, {**sandboxes.BASE_ENV, **sandbox.env})
    await deps.store.release_shell(session.id, session.command_id, state)
    return await deps.store.get_shell(session.id)


def _in_other_hands(deps: Deps, command: Command) -> bool:
    ended = command.completed_at
    return not deps.sole and ended is not None and deps.clock.now() < ended + timedelta(seconds=_HANDOVER_S)


async def _take_in(deps: Deps, session: ShellSession, token: str, base: Mapping[str, str]) -> State | None:
    """The state that a command left; None when it left none that can be kept.

    What is read is the sandbox's word, through links too if it likes: it is bounded, and believed for this session
    alone.
    """
    guest, path, data = deps.provider.guest(session.sandbox_id), dump_path(token), bytearray()
    try:
        async with asyncio.timeout(_READ_S):
            try:
                async with guest.read(path, 0, DUMP_LIMIT + 1) as reader:
                    async for chunk in reader:
                        data += chunk
            finally:
                await guest.remove(path, recursive=True)
    except (GuestError, SandboxGone, TimeoutError):
        return None
    dump = read_dump(bytes(data), token)
    return None if dump is None else fold(session.state, dump, base)


def _busy(session: ShellSession) -> Conflict:
    which = f" ('{session.command_id}': wait for it, or kill it)" if session.command_id is not None else ""
    return Conflict(
        f"Session '{session.id}' runs a command{which}. One at a time; for more at once, make another session.",
        code="session_busy",
    )


def _shown(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
