"""`FakeProvider`: a fleet in memory, for tests of all that decides. It passes the real one's suite."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from skerry.clock import SystemClock
from skerry.model.capability import Capabilities, Health
from skerry.model.capture import Archive, Held, Moved, Swept, Vault
from skerry.model.command import CommandCause, CommandEvent, Exit, Output
from skerry.model.errors import Conflict, NotFound, Refused, SandboxGone, SkerryError, Unavailable
from skerry.model.ids import ArchiveId, CommandId, SandboxId, TreeId
from skerry.model.leak import Leak
from skerry.model.lifecycle import Cause
from skerry.model.metrics import Metrics, Sample
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.model.template import BuildProgress, TemplateState, TemplateStatus
from skerry.seams import Clock
from skerry.testing.fake_guest import FakeGuest
from skerry.testing.fake_shell import FakeCommand
from skerry.testing.fake_trees import FakeStorage, FakeTree, Nodes, put_workspace, size_of, workspace_of
from skerry.testing.fixed_scripts import FIXED

READY = ("python", "node", "blank")


@dataclass(slots=True)
class FakeSandbox:
    """One sandbox of the fleet. `cause` is set once it is dead, `stopped_at` once it was stopped."""

    spec: SandboxSpec
    guest: FakeGuest
    cause: Cause | None = None
    stopped_at: datetime | None = None

    @property
    def running(self) -> bool:
        return self.cause is None and self.stopped_at is None


class FakeProvider:
    """Implements `seams.Provider`.

    For tests: `down` makes every call Unavailable; `create_error` makes creates fail; `gate` holds creates while it is
    cleared; `die` kills a sandbox; `sandboxes` is what the fleet holds, `history` what they used; `created` and
    `destroyed` count calls. Of the verbs with trees: `calls` counts them, `faults` makes them fail, `hold` and `let_go`
    are their gates, by name; `trees_held` are the captured trees, `storage` is the object store; `pool` the room.
    """

    name = "fake"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self.storage = FakeStorage()
        self.trees_held: dict[TreeId, FakeTree] = {}
        self.calls: Counter[str] = Counter()
        self.faults: dict[str, SkerryError] = {}
        self._gates: dict[str, asyncio.Event] = {}
        self.pool = (1 << 30, 1 << 29)  # bytes, free bytes
        self.sandboxes: dict[SandboxId, FakeSandbox] = {}
        self.history: dict[SandboxId, Sequence[Sample]] = {}
        self.leaked: list[Leak] = []
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

    def hold(self, verb: str) -> None:
        """Let calls of a verb wait, once they were begun."""
        self._gates.setdefault(verb, asyncio.Event()).clear()

    def let_go(self, verb: str) -> None:
        self._gates[verb].set()

    async def lose(self, sandbox_id: SandboxId) -> None:
        """Forget all of a sandbox, its files too, as a node does whose disk was lost."""
        sandbox = self.sandboxes.pop(sandbox_id)
        if sandbox.running:
            await self._end(sandbox, CommandCause.SANDBOX_GONE, Cause.DISK)

    def workspace(self, tree: str) -> dict[str, bytes | None]:
        """The files of what is held, by their paths; directories are None."""
        return {path: node.data for path, node in self._nodes(TreeId(tree)).items()}

    def forget_command(self, command_id: CommandId) -> None:
        """Lose a command of a dead sandbox, as a node does whose spool was swept."""
        self._gone.pop(command_id, None)

    async def close(self) -> None:
        for sandbox in self.sandboxes.values():
            await sandbox.guest.close()

    # -- the seam ----------------------------------------------------------------------------------------------

    async def capabilities(self) -> Capabilities:
        self._check()
        return Capabilities("fake", "fake", "1", False, ("bridge", "none"), False, "none", *self.host, "memory://")

    async def create(self, spec: SandboxSpec, tree: TreeId | None = None) -> Placement:
        self._check()
        self.created += 1
        await self.gate.wait()
        await self._step("create")
        if self.create_error is not None:
            raise self.create_error
        template = self._template(spec.template)
        if template.status is not TemplateStatus.READY:
            raise Refused(f"Template '{spec.template}' is not built.", code="template_not_ready")
        present = self.sandboxes.get(spec.id)
        known = 0 if present is None else present.spec.generation
        if spec.generation < known or (present is not None and spec.generation == known and present.stopped_at):
            raise Conflict(f"Generation {spec.generation} of '{spec.id}' is over.")
        if spec.generation > known:
            await self._make(spec, {} if tree is None else self._nodes(tree))
        await asyncio.sleep(0)
        return Placement("fake", template.digest or "")

    async def _make(self, spec: SandboxSpec, nodes: Nodes) -> None:
        before = self.sandboxes.get(spec.id)
        if before is not None and before.running:
            await self._end(before, CommandCause.SANDBOX_GONE, Cause.RUNTIME_DIED)
        guest = FakeGuest(FIXED)
        put_workspace(guest.files, nodes)
        await guest.configure(hostname=spec.hostname, env=spec.env)
        self.sandboxes[spec.id] = FakeSandbox(spec, guest)
        self.trees_held.pop(TreeId(spec.id), None)

    async def stop(self, sandbox_id: SandboxId, generation: int) -> None:
        await self._step("stop")
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None and TreeId(sandbox_id) in self.trees_held:
            return
        if sandbox is None:
            raise NotFound(f"The fake fleet has no sandbox {sandbox_id}.")
        if generation < sandbox.spec.generation:
            return
        if sandbox.running:
            await self._end(sandbox, CommandCause.SANDBOX_GONE, Cause.RUNTIME_DIED)
        sandbox.spec = replace(sandbox.spec, generation=generation)
        sandbox.cause, sandbox.stopped_at = None, sandbox.stopped_at or self._clock.now()
        await asyncio.sleep(0)

    async def capture(self, sandbox_id: SandboxId, tree: TreeId) -> None:
        await self._step("capture")
        if tree not in self.trees_held:
            self.trees_held[tree] = FakeTree(self._nodes(TreeId(sandbox_id)), self._clock.now())
        await asyncio.sleep(0)

    async def archive(self, tree: TreeId, vault: Vault) -> AsyncGenerator[Moved]:
        self._check_still(tree)
        nodes = self._nodes(tree)
        total = size_of(nodes)
        yield Moved(0, total)
        await self._step("archive")
        self._check_still(tree)
        made = self.storage.put(vault, nodes, self._clock.now())
        await asyncio.sleep(0)
        yield Moved(total, total, made.stored_bytes, made)

    async def fetch(self, tree: TreeId, archive: Archive, vault: Vault) -> AsyncGenerator[Moved]:
        self._check()
        if tree not in self.trees_held and TreeId(tree) not in self.sandboxes:
            yield Moved(0, archive.size_bytes)
            await self._step("fetch")
            self.trees_held[tree] = FakeTree(self.storage.get(vault, archive), self._clock.now())
            await asyncio.sleep(0)
        yield Moved(archive.size_bytes, archive.size_bytes, archive.size_bytes)

    async def drop(self, tree: TreeId) -> None:
        await self._step("drop")
        self._check_still(tree)
        self.trees_held.pop(tree, None)
        self.sandboxes.pop(SandboxId(tree), None)
        await asyncio.sleep(0)

    async def trees(self) -> Sequence[Held]:
        self._check()
        stopped = {
            TreeId(each.spec.id): FakeTree(workspace_of(each.guest.files), each.stopped_at)
            for each in self.sandboxes.values()
            if each.stopped_at is not None
        }
        return [tree.held(tree_id) for tree_id, tree in (self.trees_held | stopped).items()]

    async def sweep(
        self, vault: Vault, keep: Collection[ArchiveId], *, older_than_s: float, dry: bool = False
    ) -> Swept:
        await self._step("sweep")
        return self.storage.sweep(vault, keep, self._clock.now() - timedelta(seconds=older_than_s), dry=dry)

    async def destroy(self, sandbox_id: SandboxId) -> None:
        self._check()
        self.destroyed += 1
        await self._step("destroy")
        self.trees_held.pop(TreeId(sandbox_id), None)
        sandbox = self.sandboxes.pop(sandbox_id, None)
        if sandbox is not None and sandbox.running:
            await self._end(sandbox, CommandCause.SANDBOX_GONE, Cause.RUNTIME_DIED)

    async def list(self) -> Sequence[Observed]:
        self._check()
        fetched = [SandboxId(tree) for tree in self.trees_held if tree.startswith("sbx_")]
        seen = [_observed(sandbox) for sandbox in self.sandboxes.values()]
        return seen + [Observed(each, 0, running=False, stopped=True) for each in fetched if each not in self.sandboxes]

    async def watch(self) -> AsyncGenerator[Observed, None]:
        self._check()
        deaths: asyncio.Queue[Observed] = asyncio.Queue()
        self._watchers.add(deaths)
        try:
            while True:
                yield await deaths.get()
        finally:
            self._watchers.discard(deaths)

    async def leaks(self) -> Sequence[Leak]:
        self._check()
        return list(self.leaked)

    async def metrics(self, sandbox_id: SandboxId) -> Metrics:
        self._check()
        sandbox = self.sandboxes.get(sandbox_id)
        if sandbox is None:
            raise NotFound(f"The fake fleet has no sandbox {sandbox_id}.")
        now = Sample(self._clock.now(), 1, 1 << 20, 0, 1, 4096, 0, 0)
        return Metrics(10, now if sandbox.running else None, list(self.history.get(sandbox_id, ())))

    async def health(self) -> Health:
        self._check()
        running = sum(sandbox.running for sandbox in self.sandboxes.values())
        return Health("fake", running, *self.pool)

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
        if follow and sandbox is not None and sandbox.running:
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

    async def _step(self, verb: str) -> None:
        """A call reaches the node: it may fail there, or hang."""
        self._check()
        self.calls[verb] += 1
        await asyncio.sleep(0)
        if verb in self._gates:
            await self._gates[verb].wait()
        self._check()
        if verb in self.faults:
            raise self.faults[verb]

    def _nodes(self, tree: TreeId) -> Nodes:
        if tree in self.trees_held:
            return self.trees_held[tree].nodes
        if SandboxId(tree) in self.sandboxes:
            return workspace_of(self.sandboxes[SandboxId(tree)].guest.files)
        raise NotFound(f"The fake fleet holds no tree {tree}.", code="tree_missing")

    def _check_still(self, tree: TreeId) -> None:
        sandbox = self.sandboxes.get(SandboxId(tree))
        if sandbox is not None and sandbox.running:
            raise Conflict(f"Sandbox '{tree}' runs.")

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
    stopped = sandbox.stopped_at is not None
    return Observed(sandbox.spec.id, sandbox.spec.generation, sandbox.running, sandbox.cause, stopped=stopped)
