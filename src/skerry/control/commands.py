"""Commands: run, follow, look up, signal. Each is on record before it runs, and is watched until it has ended."""

import asyncio
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from skerry.control import endings, repeats, sandboxes, sizes
from skerry.control.deps import Deps
from skerry.control.following import BEYOND, follow
from skerry.control.outputs import Capture, Captured
from skerry.control.starting import why_not_started
from skerry.control.streams import closing
from skerry.model.command import (
    Command,
    CommandCause,
    CommandEvent,
    CommandKind,
    CommandStatus,
    ExecSpec,
    Keep,
)
from skerry.model.errors import (
    GuestError,
    Invalid,
    NotFound,
    ProtocolError,
    SandboxGone,
    SkerryError,
    Unavailable,
)
from skerry.model.ids import AccountId, CommandId, is_id, new_command_id
from skerry.model.lifecycle import State
from skerry.model.request import Once
from skerry.model.sandbox import Sandbox

WORKSPACE = "/workspace"
_STDIN_CHUNK = 262_144
_RETRY_S = 0.25
# A node that restarts is back within this; starting a command twice starts it once.
_START_PATIENCE_S = 10


@dataclass(frozen=True, slots=True)
class NewCommand:
    """Exactly one of `argv` and `shell`.

    `stdin`: given to the command, then end of file. With `takes_input` it stays open for `inputs.send` instead.
    Neither: end of file at once.
    `shown` is what the record tells as the command, where it is not what is run. `timeout_s`: None is the sandbox's.
    """

    argv: tuple[str, ...] = ()
    shell: str | None = None
    timeout_s: int | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    user: str | None = None
    stdin: bytes | None = field(default=None, repr=False)
    takes_input: bool = False
    keep: Keep = Keep.HEAD
    shown: str | None = None
    kind: CommandKind = CommandKind.COMMAND


@dataclass(frozen=True, slots=True)
class Decided:
    """A command as it will be recorded, and what is run for it: the first of `specs` whose program exists."""

    command: Command
    specs: Sequence[ExecSpec]
    stdin: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Result:
    """A command and what is known of its output."""

    command: Command
    captured: Captured


@dataclass(frozen=True, slots=True)
class Started:
    """A command that runs (or could not be started: see its status), and the task that watches it to its end.

    The result has the beginning of its output only where that was asked for.
    """

    command: Command
    watching: asyncio.Task[Result]


async def start(
    deps: Deps,
    account_id: AccountId,
    sandbox_id: str,
    wanted: NewCommand,
    once: Once | None = None,
    *,
    collect: bool = False,
) -> Started:
    """Record a command and start it. Nobody has to stay for it to go on. `collect`: its output, for the result.

    `once` says which calls are the same.

    A command that cannot be started (no such program, …) is no error here: it is `failed`, cause `not_started`.

    Raises:
        NotFound, Conflict: The sandbox is not there, or cannot run. A stopped one is resumed, with its errors.
        Invalid: The deadline is longer than allowed, or what is to be run, or its environment, too long.
        Unavailable: The node stays away; whether the command runs is found out and recorded later.
    """
    begin = partial(_start, deps, account_id, sandbox_id, wanted, collect)
    if once is None:
        started = await begin(None)
        assert started is not None
        return started
    work = partial(_start_once, deps, account_id, wanted, once, collect, begin)
    return await repeats.shared(deps, account_id, once, work)


async def _start_once(
    deps: Deps,
    account_id: AccountId,
    wanted: NewCommand,
    once: Once,
    collect: bool,
    begin: Callable[[Once], Awaitable[Started | None]],
) -> Started:
    while True:
        made = await deps.store.find_request(account_id, once)
        if made is not None:
            command = await deps.store.get_command(CommandId(made))
            if command.exit is None or command.exit.cause is not CommandCause.NOT_STARTED:
                return await _take_up(deps, command, wanted, collect)
        started = await begin(replace(once, instead_of=made))
        if started is not None:
            return started


async def _start(
    deps: Deps, account_id: AccountId, sandbox_id: str, wanted: NewCommand, collect: bool, once: Once | None
) -> Started | None:
    """None: another process has started a command for this request meanwhile."""

    async def record(command: Command) -> bool:
        return await deps.store.add_command(command, once) == command.id

    async def work(sandbox: Sandbox) -> Started | None:
        return await begin(deps, decide(deps, sandbox, wanted), record, collect=collect)

    return await sandboxes.give(deps, account_id, sandbox_id, work)


async def begin(
    deps: Deps, decided: Decided, record: Callable[[Command], Awaitable[bool]], *, collect: bool = False
) -> Started | None:
    """Record a command with `record` and start it, unless that says that something else stands in its place (None).

    Raises:
        Unavailable: As for `start`.
    """
    command = decided.command
    deps.following.add(command.id)
    try:
        recorded = await record(command)
    except BaseException:
        deps.following.discard(command.id)
        raise
    if not recorded:
        deps.following.discard(command.id)
        return None
    return await _driven(deps, decided, collect=collect)


async def _driven(deps: Deps, decided: Decided, *, collect: bool) -> Started:
    started: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
    work = _drive(deps, decided, started, collect=collect)
    watching = deps.tasks.spawn(work, name=f"run {decided.command.id}")
    return Started(await asyncio.shield(started), watching)


async def _take_up(deps: Deps, command: Command, wanted: NewCommand, collect: bool) -> Started:
    """A command that an equal request made earlier. Where a crash came before its start, it is started now."""
    if command.status is not CommandStatus.RUNNING:
        found = look_up(deps, command.account_id, command.id)
        return Started(command, deps.tasks.spawn(found, name=f"look up {command.id}"))
    if command.id not in deps.following and command.id not in await deps.provider.command_exits([command.id]):
        sandbox = await deps.store.get_sandbox(command.sandbox_id)
        if sandbox.state is State.RUNNING:
            deps.following.add(command.id)
            decided = Decided(command, [spec_of(sandbox, command, wanted)], wanted.stdin)
            return await _driven(deps, decided, collect=collect)
    return Started(command, deps.tasks.spawn(_watch(deps, command, collect=collect), name=f"watch {command.id}"))


async def run(
    deps: Deps, account_id: AccountId, sandbox_id: str, wanted: NewCommand, once: Once | None = None
) -> Result:
    """Start a command and wait for its end. A caller that leaves ends the waiting, not the command.

    Raises:
        As `start`.
    """
    started = await start(deps, account_id, sandbox_id, wanted, once, collect=True)
    return await asyncio.shield(started.watching)


async def get(deps: Deps, account_id: AccountId, command_id: str) -> Command:
    """Raises NotFound when there is none, or it is another account's."""
    if is_id(command_id, "cmd"):
        command = await deps.store.get_command(CommandId(command_id))
        if command.account_id == account_id:
            return command
    raise NotFound(f"No command '{command_id[:64]}'.")


async def look_up(deps: Deps, account_id: AccountId, command_id: str) -> Result:
    """A command with what there is of its output now, also after its sandbox is gone.

    Output that is no longer kept is told as lost, all of it.
    """
    command = await get(deps, account_id, command_id)
    capture = Capture()
    try:
        async with closing(present(deps, command)) as events:
            async for event in events:
                capture.add(event)
    except NotFound:
        known = command.exit.offset if command.exit is not None else 0
        return Result(command, Captured(output_bytes=known, lost_bytes=known))
    if capture.exit is not None and command.status is CommandStatus.RUNNING:
        command = await endings.end_command(deps, command, capture.exit)
    return Result(command, capture.result())


def present(deps: Deps, command: Command, offset: int = 0) -> AsyncIterator[CommandEvent]:
    """What there is now of a command's output from `offset` on, and its `Exit` if it has ended.

    Raises:
        NotFound: Its output is no longer kept.
    """
    return deps.provider.output(command.sandbox_id, command.id, offset, follow=False)


async def signal(deps: Deps, account_id: AccountId, command_id: str, number: int, scope: str) -> Command:
    """Send a signal. To a command that has ended: nothing happens.

    Raises:
        NotFound: As for `get`.
    """
    command = await get(deps, account_id, command_id)
    if command.status is CommandStatus.RUNNING:
        await deps.provider.guest(command.sandbox_id).signal(command.id, number, scope)
    return command


async def kill(deps: Deps, account_id: AccountId, command_id: str) -> Command:
    """SIGKILL a command and all its descendants. One that has ended: nothing happens."""
    command = await get(deps, account_id, command_id)
    if command.status is CommandStatus.RUNNING:
        await deps.provider.guest(command.sandbox_id).kill(command.id)
    return command


def adopt(deps: Deps, command: Command) -> None:
    """Watch a running command that no task of this process watches, to its end. Watched already: does nothing."""
    if command.id in deps.following:
        return
    deps.following.add(command.id)
    deps.tasks.spawn(_watch_adopted(deps, command), name=f"follow {command.id}")


async def _watch_adopted(deps: Deps, command: Command) -> Result:
    try:
        return await _watch(deps, command, collect=False)
    finally:
        deps.following.discard(command.id)


def decide(deps: Deps, sandbox: Sandbox, wanted: NewCommand) -> Decided:
    """What is recorded and run for `wanted`. A startup has no deadline.

    Raises:
        Invalid: The deadline is longer than allowed, or what is to be run, or its environment, too long.
    """
    timeout_s = None if wanted.kind is CommandKind.STARTUP else wanted.timeout_s or sandbox.timeout_s
    most = deps.config.max_command_timeout_s
    if timeout_s is not None and timeout_s > most:
        raise Invalid(f"'timeout_seconds' is {timeout_s}; this server allows {most} at most.", field="timeout_seconds")
    command = Command(
        id=new_command_id(),
        sandbox_id=sandbox.id,
        account_id=sandbox.account_id,
        command=wanted.shown or (wanted.shell if wanted.shell is not None else shlex.join(wanted.argv)),
        status=CommandStatus.RUNNING,
        working_directory=wanted.cwd or WORKSPACE,
        timeout_s=timeout_s,
        started_at=deps.clock.now(),
        kind=wanted.kind,
        takes_input=wanted.takes_input,
    )
    spec = spec_of(sandbox, command, wanted)
    sizes.check_command(spec)
    return Decided(command, [spec], wanted.stdin)


def spec_of(sandbox: Sandbox, command: Command, wanted: NewCommand) -> ExecSpec:
    return ExecSpec(
        id=command.id,
        argv=wanted.argv,
        shell=wanted.shell,
        cwd=wanted.cwd,
        # All of it with each command: it may have changed, and only the record keeps it, sealed.
        env={**sandboxes.BASE_ENV, **sandbox.env, **wanted.env},
        user=wanted.user,
        stdin=wanted.takes_input or wanted.stdin is not None,
        timeout_s=command.timeout_s,
        keep=wanted.keep,
    )


async def _drive(deps: Deps, decided: Decided, started: asyncio.Future[Command], *, collect: bool) -> Result:
    """Start a recorded command, tell `started`, and watch it to its end."""
    command, stdin = decided.command, decided.stdin
    try:
        refused = await _exec(deps, command, decided.specs)
        if refused is not None:
            started.set_result(refused)
            return Result(refused, Captured())
        started.set_result(command)
        if stdin is None:
            return await _watch(deps, command, collect=collect)
        feeding = deps.tasks.spawn(_feed(deps, command, stdin), name=f"feed {command.id}")
        try:
            return await _watch(deps, command, collect=collect)
        finally:
            feeding.cancel()
    except SkerryError as error:
        if not started.done():
            started.set_exception(error)
            started.exception()  # a caller that has left leaves nobody to ask for it
        raise
    finally:
        if not started.done():
            started.cancel()
        deps.following.discard(command.id)


async def _exec(deps: Deps, command: Command, specs: Sequence[ExecSpec]) -> Command | None:
    """Start it; the ended record when it could not be started."""
    try:
        await _exec_patiently(deps, command, specs[0])
        return None
    except GuestError as error:
        if error.guest_code == "not_found" and len(specs) > 1:
            return await _exec(deps, command, specs[1:])
        exit = endings.unknown_exit(CommandCause.NOT_STARTED, why_not_started(specs[0], error))
        return await endings.end_command(deps, command, exit)
    except SandboxGone as error:
        return await endings.end_command(deps, command, await endings.found_gone(deps, command, error))


async def _exec_patiently(deps: Deps, command: Command, spec: ExecSpec) -> None:
    while True:
        try:
            return await deps.provider.guest(command.sandbox_id).exec(spec)
        except (Unavailable, ProtocolError) as error:
            now = deps.clock.now()
            if now > command.started_at + timedelta(seconds=_START_PATIENCE_S):
                # Whose fault it is, the error says itself: it may be the node's, the sandbox's or sbxd's.
                raise Unavailable(
                    f"The command could not be handed over within {_START_PATIENCE_S} s: {error.message} "
                    f"What became of '{command.id}' is found out later."
                ) from error
            await deps.clock.sleep_until(now + timedelta(seconds=_RETRY_S))


async def _watch(deps: Deps, command: Command, *, collect: bool) -> Result:
    """Follow a command to its end and record that."""
    capture = Capture()
    async with closing(follow(deps, command, 0 if collect else BEYOND)) as events:
        async for event in events:
            capture.add(event)
    assert capture.exit is not None
    return Result(await endings.end_command(deps, command, capture.exit), capture.result())


async def _feed(deps: Deps, command: Command, stdin: bytes) -> None:
    guest = deps.provider.guest(command.sandbox_id)
    try:
        for start in range(0, len(stdin), _STDIN_CHUNK):
            await guest.write_stdin(command.id, stdin[start : start + _STDIN_CHUNK])
        await guest.close_stdin(command.id)
    except (GuestError, SandboxGone, NotFound, Unavailable):
        return  # the command has closed its stdin or ended; how it ended is told by its output
