"""The startup command: set, looked at, run when a sandbox comes up and when its owner says so.

What is due is found from the records (a running sandbox whose generation was not started up yet), and one transaction
claims it together with its command: so it runs once for each time a sandbox comes up, whoever dies meanwhile.
A startup is an asynchronous command without a deadline, and no activity: the sandbox stays `ready`.
"""

from collections import deque
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from skerry.control import commands, sandboxes
from skerry.control.commands import Decided, NewCommand
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.command import Command, CommandCause, CommandKind, CommandStatus, Keep, Output
from skerry.model.errors import Conflict, GuestError, NotFound, SandboxGone
from skerry.model.ids import AccountId, CommandId
from skerry.model.lifecycle import State
from skerry.model.sandbox import Sandbox
from skerry.model.startup import StartupRun, StartupSource

FILE = "/workspace/flax.startup"
_FILE_LIMIT = 65_536  # bytes of the file that are looked at
LINE_LIMIT = 16_384
_LOGS_BYTES = 65_536
_ENDING_S = 15

# By name, what an earlier startup left running behind it: as much of it as kept its environment. Then the new one.
_MARK = "SKERRY_STARTUP"
AFRESH = """\
for i in 1 2 3; do for p in /proc/[0-9]*; do
if grep -qs "SKERRY_STARTUP=$1" "$p/environ"; then kill -9 "${p#/proc/}"; fi
done; done 2>/dev/null
if [ -x /bin/bash ]; then exec /bin/bash -c "$2"; fi; exec /bin/sh -c "$2"
"""


@dataclass(frozen=True, slots=True)
class Startup:
    """`command` is what was set; `effective` what would run. The rest is about the latest run."""

    command: str | None
    effective: str | None
    source: StartupSource | None
    run: Command | None = None
    ran_at: datetime | None = None
    logs: bytes = b""

    @property
    def status(self) -> str | None:
        """`running`, `stopped` (it ended with 0, or with its sandbox), `failed`; None: it never ran."""
        if self.run is None:
            return None
        if self.run.status is CommandStatus.RUNNING:
            return "running"
        exit = self.run.exit
        ended_well = exit is not None and (exit.code == 0 or exit.cause is CommandCause.SANDBOX_GONE)
        return "stopped" if ended_well else "failed"


async def status(deps: Deps, account_id: AccountId, sandbox_id: str) -> Startup:
    """What is set up, what would run, and how the latest run goes.

    Raises:
        NotFound: As `sandboxes.get`.
    """
    sandbox = await sandboxes.get(deps, account_id, sandbox_id)
    try:
        effective, source = await _effective(deps, sandbox)
    except SandboxGone:
        effective, source = None, None
    known = Startup(sandbox.startup_command, effective, source)
    run = await deps.store.get_startup(sandbox.id)
    if run is None or run.command_id is None:
        return known
    command = await deps.store.get_command(run.command_id)
    return replace(known, run=command, ran_at=run.ran_at, logs=await _tail(deps, command))


async def configure(deps: Deps, account_id: AccountId, sandbox_id: str, command: str | None) -> Startup:
    """Replace the startup command; None or an empty one takes it away. What runs goes on, and nothing is started.

    Raises:
        NotFound: As `sandboxes.get`.
        Conflict: The sandbox is destroyed.
    """
    sandbox = await sandboxes.get(deps, account_id, sandbox_id)
    if sandbox.state in (State.DESTROYING, State.DESTROYED):
        raise Conflict(f"Sandbox '{sandbox.id}' is {sandbox.state}.", code=f"sandbox_{sandbox.state}")
    await deps.store.set_startup_command(sandbox, command or None)
    return await status(deps, account_id, sandbox_id)


async def run(deps: Deps, account_id: AccountId, sandbox_id: str) -> Startup:
    """Run the startup command now. An earlier run is killed first, with all that it started.

    On a stopped sandbox: it comes up, and so does its startup command, once.

    Raises:
        NotFound, Conflict: As `sandboxes.awake`; `startup_not_configured`: there is nothing to run.
    """
    known = await sandboxes.get(deps, account_id, sandbox_id)
    sandbox = await sandboxes.awake(deps, account_id, sandbox_id)
    text, _ = await _effective(deps, sandbox)
    if text is None:
        raise Conflict(
            f"Sandbox '{sandbox.id}' has no startup command. Set one with PUT …/startup, or write it to {FILE}.",
            code="startup_not_configured",
        )
    if sandbox.generation > known.generation:
        await run_due(deps, sandbox)
        return await status(deps, account_id, sandbox_id)
    before = await deps.store.get_startup(sandbox.id)
    old = None if before is None else before.command_id
    if old is not None:
        await _end(deps, sandbox, old)
    if not await _begin(deps, sandbox, _decided(deps, sandbox, text, old), before):
        raise Conflict(f"Another startup of '{sandbox.id}' was begun at the same time.", code="startup_begun")
    return await status(deps, account_id, sandbox_id)


async def run_due(deps: Deps, sandbox: Sandbox) -> None:
    """Run what is due after a sandbox has come up. Safe to call twice, and at once: one of them runs it."""
    before = await deps.store.get_startup(sandbox.id)
    if before is not None and before.generation >= sandbox.generation:
        return
    text, _ = await _effective(deps, sandbox)
    if text is None:
        await deps.store.skip_startup(sandbox, replaces=before)
        return
    await _begin(deps, sandbox, _decided(deps, sandbox, text, None), before)


def run_due_soon(deps: Deps, sandbox: Sandbox) -> None:
    """`run_due` without waiting. What fails is found again by the reconciler."""
    if sandbox.startup_command is not None or sandbox.generation > 1 or sandbox.source is not None:
        deps.tasks.spawn(run_due(deps, sandbox), name=f"startup {sandbox.id}")


async def resume_recorded(deps: Deps, sandbox: Sandbox, command: Command) -> bool:
    """Start a recorded startup of which the node has never heard. False: it may have run, and is forgotten by now."""
    if deps.clock.now() > command.started_at + timedelta(hours=deps.config.output_keep_hours):
        return False
    wanted = _wanted(command.command, None, command.id)

    async def recorded(_command: Command) -> bool:
        return True

    await commands.begin(deps, Decided(command, [commands.spec_of(sandbox, command, wanted)]), recorded)
    return True


def first_line(content: bytes) -> str | None:
    """The first line of a startup file that is neither empty nor a comment; None if there is none that can be run."""
    for raw in content.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        line = raw.strip()
        if not line or line.startswith(b"#"):
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError:
            return None
        return None if "\0" in text or len(line) > LINE_LIMIT else text
    return None


async def _effective(deps: Deps, sandbox: Sandbox) -> tuple[str | None, StartupSource | None]:
    if sandbox.startup_command is not None:
        return sandbox.startup_command, StartupSource.COMMAND
    if sandbox.state is not State.RUNNING:
        return None, None
    content = bytearray()
    try:
        async with deps.provider.guest(sandbox.id).read(FILE, 0, _FILE_LIMIT) as reader:
            async for chunk in reader:
                content += chunk
    except GuestError:
        return None, None
    if len(content) >= _FILE_LIMIT:  # a line that is cut is not run
        content = content[: content.rfind(b"\n") + 1]
    line = first_line(bytes(content))
    return (None, None) if line is None else (line, StartupSource.FILE)


def _decided(deps: Deps, sandbox: Sandbox, text: str, old: CommandId | None) -> Decided:
    decided = commands.decide(deps, sandbox, NewCommand(shell=text, kind=CommandKind.STARTUP))
    wanted = _wanted(text, old, decided.command.id)
    return Decided(decided.command, [commands.spec_of(sandbox, decided.command, wanted)])


def _wanted(text: str, old: CommandId | None, own: CommandId) -> NewCommand:
    env = {_MARK: own}
    if old is None:
        return NewCommand(shell=text, kind=CommandKind.STARTUP, env=env, keep=Keep.TAIL)
    argv = ("/bin/sh", "-c", AFRESH, "sh", old, text)
    return NewCommand(argv=argv, kind=CommandKind.STARTUP, env=env, keep=Keep.TAIL)


async def _begin(deps: Deps, sandbox: Sandbox, decided: Decided, before: StartupRun | None) -> bool:
    """False: another run was begun meanwhile."""

    async def record(command: Command) -> bool:
        return await deps.store.begin_startup(command, sandbox.generation, replaces=before)

    return await commands.begin(deps, decided, record) is not None


async def _end(deps: Deps, sandbox: Sandbox, old: CommandId) -> None:
    command = await deps.store.get_command(old)
    if command.status is not CommandStatus.RUNNING:
        return
    try:
        await deps.provider.guest(sandbox.id).kill(old)
    except (NotFound, GuestError):
        return
    patience = deps.clock.now() + timedelta(seconds=_ENDING_S)
    while (await deps.store.get_command(old)).status is CommandStatus.RUNNING and deps.clock.now() < patience:
        await deps.clock.sleep_until(deps.clock.now() + timedelta(seconds=0.02))


async def _tail(deps: Deps, command: Command) -> bytes:
    """The end of what is kept of the output, both channels."""
    known = command.exit.offset if command.exit is not None else 0
    kept, size = deque[bytes](), 0
    try:
        async with closing(commands.present(deps, command, max(0, known - _LOGS_BYTES))) as events:
            async for event in events:
                if isinstance(event, Output):
                    kept.append(event.data)
                    size += len(event.data)
                while size - len(kept[0] if kept else b"") >= _LOGS_BYTES:
                    size -= len(kept.popleft())
    except (NotFound, SandboxGone):
        return b""
    return b"".join(kept)[-_LOGS_BYTES:]
