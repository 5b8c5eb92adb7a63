"""`FakeProvider`: a fleet in memory, for tests of all that decides. It passes the real one's suite."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from skerry.model.capability import Capabilities, Health
from skerry.model.command import CommandCause, CommandEvent, Exit, Output
from skerry.model.errors import Conflict, NotFound, Refused, SandboxGone, SkerryError, Unavailable
from skerry.model.ids import CommandId, SandboxId
from skerry.model.lifecycle import Cause
from skerry.model.metrics import Metrics, Sample
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.model.template import BuildProgress, TemplateState, TemplateStatus
from skerry.testing.fake_guest import FakeGuest
from skerry.testing.fake_shell import FakeCommand
from skerry.testing.fixed_scripts import FIXED

READY = ("python", "node", "blank")


@dataclass(slots=True)
class FakeSandbox:
    """One sandbox of the fleet. `cause` is set once it is dead."""

    spec: SandboxSpec
    guest: FakeGuest
    cause: Cause | None = None


class FakeProvider:
    """Implements `seams.Provider`.

    For tests: `down` makes every call Unavailable; `create_error` makes creates fail; `gate` holds creates while it is
    cleared; `die` kills a sandbox; `sandboxes` is what the fleet holds, `history` what they used; `created` and
    `destroyed` count calls.
    """

    name = "fake"

    def __init__(self) -> None:
        self.sandboxes: dict[SandboxId, FakeSandbox] = {}
        self.history: dict[SandboxId, Sequence[Sample]] = {}
        self.down = False
        self.create_error: SkerryError | None = None
        self.build_error: Refused | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.host = (32_768, 8000, 65_536)  # memory_mb, cpu_millis, disk_mb
        self.created = 0
        self.destroyed = 0
        self.built: list[str] = []
        self._templates = {
            name: TemplateState(name, f"The {name} template.", TemplateStatus.READY, f"sha256:{name}", 1)
            for name in READY
        }
        self._gone: dict[CommandId, tuple[SandboxId, FakeCommand, Exit]] = {}
        self._watchers: set[asyncio.Queue[Observed]] = set()

    # -- for tests ---------------------------------------------------------------------------------------------

    def add_template(self, name: str, status: TemplateStatus = TemplateStatus.PENDING) -> None:
        self._templates[name] = TemplateState(name, "", status)

    async def die(self, sandbox_id: SandboxId, cause: Cause = Cause.RUNTIME_DIED, *, tell: bool = True) -> None:
        """Kill a sandbox. With `tell`, watchers hear of it; else only `list` shows it."""
        sandbox = self.sandboxes[sandbox_id]
        sandbox.cause = cause
        await self._end(sandbox, CommandCause.OOM if cause is Cause.OOM else CommandCause.SANDBOX_GONE, cause)
        if tell:
            for watcher in self._watchers:
                watcher.put_nowait(_observed(sandbox))

    def forget_command(self, command_id: CommandId) -> None:
        """Lose a command of a dead sandbox, as a node does whose spool was swept."""
        self._gone.pop(command_id, None)

    async def close(self) -> None:
        for sandbox in self.sandboxes.values():
            await sandbox.guest.close()

    # -- the seam ----------------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        self._check()
        return Capabilities("fake", "fake", "1", False, ("bridge", "none"), False, "none", *self.host)

    async def create(self, spec: SandboxSpec) -> Placement:
        self._check()
        self.created += 1
        await self.gate.wait()
        self._check()
        if self.create_error is not None:
            raise self.create_error
        template = self._template(spec.template)
        if template.status is not TemplateStatus.READY:
            raise Refused(f"Template '{spec.template}' is not built.", code="template_not_ready")
        present = self.sandboxes.get(spec.id)
        if present is not None and present.spec.generation > spec.generation:
            raise Conflict(f"Generation {spec.generation} of '{spec.id}' is over.")
        if present is None:
            guest = FakeGuest(FIXED)
            await guest.configure(hostname=spec.hostname, env=spec.env)
            self.sandboxes[spec.id] = FakeSandbox(spec, guest)
        return Placement("fake", template.digest or "")

    async def destroy(self, sandbox_id: SandboxId) -> None:
        self._check()
        self.destroyed += 1
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox is not None and sandbox.cause is None:
            await self._end(sandbox, CommandCause.SANDBOX_GONE, Cause.RUNTIME_DIED)

    async def list(self) -> Sequence[Observed]:
        self._check()
        return [_observed(sandbox) for sandbox in self.sandboxes.values()]

    async def watch(self) -> AsyncGenerator[Observed, None]:
        self._check()
        deaths: asyncio.Queue[Observed] = asyncio.Queue()
        self._watchers.add(deaths)
        try:
            while True:
                yield await deaths.get()
        finally:
            self._watchers.discard(deaths)

    async def metrics(self, sandbox_id: SandboxId) -> Metrics:
        self._check()
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFound(f"The fake fleet has no sandbox {sandbox_id}.")
        now = Sample(datetime.now(UTC), 1, 1 << 20, 0, 1, 4096, 0, 0)
        return Metrics(10, now if sandbox.cause is None else None, list(self.history.get(sandbox_id, ())))

    async def health(self) -> Health:
        self._check()
        running = sum(sandbox.cause is None for sandbox in self.sandboxes.values())
        return Health("fake", running, 1 << 30, 1 << 29)

    def guest(self, sandbox_id: SandboxId) -> FakeGuest:
        sandbox = self.sandboxes.get(sandbox_id)
        if self.down:
            return _Unreachable()
        return _gone_guest() if sandbox is None else sandbox.guest

    async def command_exits(self, command_ids: Sequence[CommandId]) -> dict[CommandId, Exit | None]:
        self._check()
        known = {command_id: exit for command_id, (_, _, exit) in self._gone.items()}
        for sandbox in self.sandboxes.values():
            known |= {command_id: command.exit for command_id, command in _commands(sandbox.guest).items()}
        return {command_id: known[command_id] for command_id in command_ids if command_id in known}

    async def output(
        self, sandbox_id: SandboxId, command_id: CommandId, offset: int = 0, *, follow: bool = True
    ) -> AsyncGenerator[CommandEvent, None]:
        self._check()
        sandbox = self.sandboxes.get(sandbox_id)
        if follow and sandbox is not None and sandbox.cause is None:
            try:
                async for event in sandbox.guest.attach(command_id, offset):
                    self._check()
                    yield event
                    if isinstance(event, Output):
                        offset = event.offset + len(event.data)
                return
            except SandboxGone:
                pass  # what it had printed, and its end, are kept
        for event in self._kept(sandbox_id, command_id, offset):
            yield event

    async def templates(self) -> Sequence[TemplateState]:
        self._check()
        return list(self._templates.values())

    async def build_template(self, name: str) -> AsyncGenerator[BuildProgress, None]:
        self._check()
        if self._template(name).status is TemplateStatus.READY:
            return
        self.built.append(name)
        self._templates[name] = replace(self._templates[name], status=TemplateStatus.BUILDING)
        yield BuildProgress(name, 0.5, "halfway")
        if self.build_error is not None:
            self._templates[name] = TemplateState(name, "", TemplateStatus.FAILED, error=self.build_error.message)
            raise self.build_error
        yield BuildProgress(name, 1.0, "done")
        self._templates[name] = TemplateState(name, "", TemplateStatus.READY, f"sha256:{name}", 1)

    # -- inside ------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self.down:
            raise Unavailable("The fake node is down.")

    def _template(self, name: str) -> TemplateState:
        if name not in self._templates:
            raise NotFound(f"No template '{name}'. There are: {', '.join(self._templates)}.")
        return self._templates[name]

    async def _end(self, sandbox: FakeSandbox, why: CommandCause, cause: Cause) -> None:
        for command_id, command in _commands(sandbox.guest).items():
            exit = command.exit or Exit(None, None, False, command.offset, 1, why)
            self._gone[command_id] = (sandbox.spec.id, command, exit)
        await sandbox.guest.die(cause)

    def _kept(self, sandbox_id: SandboxId, command_id: CommandId, offset: int) -> Sequence[CommandEvent]:
        sandbox = self.sandboxes.get(sandbox_id)
        if command_id in self._gone:
            owner, command, exit = self._gone[command_id]
        elif sandbox is not None and command_id in _commands(sandbox.guest):
            command = _commands(sandbox.guest)[command_id]
            owner, exit = sandbox_id, command.exit
        else:
            raise NotFound(f"No command '{command_id}'.")
        if owner != sandbox_id:
            raise NotFound(f"No command '{command_id}'.")
        events: list[CommandEvent] = []
        for item in command.output:
            skipped = max(0, offset - item.offset)
            if skipped < len(item.data):
                events.append(Output(item.channel, item.offset + skipped, item.data[skipped:]))
        return events if exit is None else [*events, exit]


def _commands(guest: FakeGuest) -> dict[CommandId, FakeCommand]:
    return guest._commands  # pyright: ignore[reportPrivateUsage]


class _Unreachable(FakeGuest):
    """The inside of a sandbox whose node is down."""

    def _check_alive(self) -> None:
        raise Unavailable("The fake node is down.")


def _gone_guest() -> FakeGuest:
    guest = FakeGuest()
    guest._cause = "runtime_died"  # pyright: ignore[reportPrivateUsage]
    return guest


def _observed(sandbox: FakeSandbox) -> Observed:
    return Observed(sandbox.spec.id, sandbox.spec.generation, sandbox.cause is None, sandbox.cause)
