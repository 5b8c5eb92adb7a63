"""Owns the sandboxes of this host: makes them, watches them die, takes them over after its own death, destroys them.

Each verb is serialised per sandbox and writes its intent down before it acts; the steps themselves are in `steps`.
Knows no account, no template's contents and no socket.
"""

import asyncio
import builtins
import os
import secrets
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from skerry.guest.connection import Connection
from skerry.guest.hello import SECRET_BYTES
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.errors import (
    Conflict,
    DeadlineExceeded,
    NotFound,
    ProtocolError,
    Refused,
    SandboxGone,
    SkerryError,
    TooBusy,
    Unavailable,
)
from skerry.model.ids import SandboxId, is_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.node import steps
from skerry.node.commands import Runner, Strangers, end_all, end_orphans, take_up
from skerry.node.deaths import Deaths
from skerry.node.exits import Exits
from skerry.node.parts import Parts
from skerry.node.records import Record, Records, Stage, free_id_base, gone, host_boot, moved
from skerry.node.returning import ADOPT_S, RETURN_S, come_back
from skerry.node.spool import Spool
from skerry.node.tasks import root_cause, spawn, through

CREATE_S = 90.0
CAUSE_GRACE_S = 2.0  # a channel that ends because the sandbox died is usually seen before the death itself
ADOPTED_AT_ONCE = 8
MAX_WAITING = 512  # creates that wait for their turn; more are told to come back

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Held:
    """A sandbox in memory. `lock` is held by whoever changes it, `users` use or await it; `scope` times a create."""

    record: Record | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0
    scope: asyncio.Timeout | None = None
    unwanted: bool = False  # a destroy waits for the lock
    guest: SbxdGuest | None = None
    runner: Runner | None = None
    strangers: Strangers | None = None


class Supervisor:
    """The sandboxes of one node. `group` runs its tasks; what it started ends with it, the sandboxes do not."""

    def __init__(
        self, parts: Parts, records: Records, spool: Spool, group: asyncio.TaskGroup, first_range: int = 0
    ) -> None:
        self._parts = parts
        self._records = records
        self._spool = spool
        self._group = group
        self._first_range = first_range
        self._exits = Exits(spool)
        self._held: dict[SandboxId, _Held] = {}
        self._slots = asyncio.Semaphore(2 + 2 * (os.cpu_count() or 1))
        self._creating = 0
        self._strays: set[SandboxId] = set()
        self.deaths = Deaths()
        self.return_s, self.adopt_s = RETURN_S, ADOPT_S
        self._boot = host_boot()
        spawn(group, self._exits.run(), "exits")

    # -- what the provider asks --------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec) -> Placement:
        """See `seams.Provider.create`. A caller that goes away cancels it, and nothing is left."""
        if not is_id(spec.id, "sbx"):
            raise NotFound(f"'{spec.id}' is not a sandbox's id.")
        if self._creating >= MAX_WAITING:
            raise TooBusy(f"{MAX_WAITING} sandboxes wait to be made on this node. Try again in a moment.")
        held = self._held.setdefault(spec.id, _Held())
        held.users += 1
        self._creating += 1
        try:
            async with held.lock:
                return await self._create(held, spec)
        finally:
            self._creating -= 1
            self._done_with(spec.id, held)

    async def _create(self, held: _Held, spec: SandboxSpec) -> Placement:
        try:
            async with asyncio.timeout(0 if held.unwanted else CREATE_S) as held.scope:
                if held.record is not None and (placement := await self._known(held, held.record, spec)) is not None:
                    return placement
                async with self._slots:
                    return await self._make(held, spec)
        except TimeoutError as error:
            if held.unwanted:
                raise Conflict(f"Sandbox {spec.id} was destroyed while it was being made.") from error
            raise DeadlineExceeded(f"The sandbox was not up within {CREATE_S:g} s; nothing of it is left.") from error
        finally:
            held.scope = None

    async def _known(self, held: _Held, record: Record, spec: SandboxSpec) -> Placement | None:
        """The answer to a create of what is here already; None: what is here was never whole and has been removed."""
        if spec.generation < record.spec.generation:
            raise Conflict(f"Sandbox {spec.id} is at generation {record.spec.generation} here, not {spec.generation}.")
        if spec.generation > record.spec.generation or record.stage is Stage.DESTROYING:
            raise Conflict(f"Sandbox {spec.id} exists here ({record.stage}). Destroy it before it is made anew.")
        if record.stage is Stage.CREATING:
            await through(self._group, self._undo(held, record))
            return None
        if record.stage is Stage.DEAD:
            raise gone(record)
        return Placement(record.runtime, record.template_digest)

    async def _make(self, held: _Held, spec: SandboxSpec) -> Placement:
        image = await self._parts.images.ready(spec.template)
        record = held.record = Record(
            spec=spec,
            stage=Stage.CREATING,
            runtime=self._parts.runtime.name,
            template_digest=image.digest,
            template_root=image.root,
            secret=secrets.token_bytes(SECRET_BYTES),
            host_boot=self._boot,
            id_base=free_id_base(self._all(), self._first_range) if self._parts.runtime.needs_id_range else None,
        )
        try:
            self._records.write(record)
            connection = await steps.start(self._parts, record, self._group)
            held.record = moved(record, Stage.RUNNING)
            self._records.write(held.record)
        except BaseException as error:
            await through(self._group, self._undo(held, record))
            cause = root_cause(error, SkerryError)
            if isinstance(cause, OSError):
                raise Refused(
                    f"The host could not make the sandbox: {cause}. `skerry doctor` may tell more."
                ) from error
            if cause is error:
                raise
            raise cause from error
        self._take(held, held.record, connection)
        log.info("a sandbox was made", sandbox_id=record.id, template=record.spec.template)
        return Placement(record.runtime, record.template_digest)

    async def _undo(self, held: _Held, record: Record) -> None:
        """Remove what was made. If that fails, the record stays as DESTROYING, and `tend` tries again."""
        held.record = moved(record, Stage.DESTROYING)
        with suppress(OSError):  # on a full disk CREATING stays there, which is cleaned up just as well
            self._records.write(held.record)
        await steps.remove(self._parts, record.id)
        self._records.remove(record.id)
        held.record = None

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """See `seams.Provider.destroy`. Once begun it goes on, whoever waits for it."""
        held = self._held.get(sandbox_id)
        if held is not None:
            await through(self._group, self._destroy(sandbox_id, held))

    async def _destroy(self, sandbox_id: SandboxId, held: _Held) -> None:
        held.users += 1
        held.unwanted = True
        if held.scope is not None:
            held.scope.reschedule(asyncio.get_running_loop().time())
        try:
            async with held.lock:
                held.unwanted = False
                if held.record is not None:
                    record = held.record
                    held.record = moved(record, Stage.DESTROYING)
                    self._drop(held, held.record, SandboxGone("The sandbox was destroyed.", cause="destroyed"))
                    await self._undo(held, record)
                    log.info("a sandbox was destroyed", sandbox_id=sandbox_id)
        finally:
            self._done_with(sandbox_id, held)

    def _done_with(self, sandbox_id: SandboxId, held: _Held) -> None:
        held.users -= 1
        if held.record is None and not held.users:
            self._held.pop(sandbox_id, None)

    def list(self) -> list[Observed]:
        """All sandboxes that this node holds anything of."""
        return [record.observed() for record in self._all()]

    def _all(self) -> builtins.list[Record]:
        return [held.record for held in self._held.values() if held.record is not None]

    def inside(self, sandbox_id: SandboxId) -> tuple[SbxdGuest, Runner]:
        """The way into a running sandbox.

        Raises:
            SandboxGone: It is dead, or unknown here.
            Unavailable: It is being made, or the way to it is being repaired.
        """
        held = self._held.get(sandbox_id)
        if held is None or held.record is None:
            raise SandboxGone(f"This node has no sandbox {sandbox_id}: it was destroyed, or never made here.")
        if held.guest is not None and held.runner is not None:
            return held.guest, held.runner
        if held.record.stage in (Stage.DEAD, Stage.DESTROYING):
            raise gone(held.record)
        raise Unavailable(f"Sandbox {sandbox_id} is {held.record.stage} and cannot be reached now: try again.")

    # -- life and death ----------------------------------------------------------------------------------------

    def _take(self, held: _Held, record: Record, connection: Connection) -> None:
        """A connection is up: commands may run, and the sandbox is watched."""
        self._link(held, record, connection)
        spawn(self._group, self._watch(held, record, connection), "watch")

    def _link(self, held: _Held, record: Record, connection: Connection) -> Runner:
        oom_kills = partial(self._parts.runtime.oom_kills, record.id)
        held.guest = SbxdGuest(connection)
        own = not self._parts.runtime.shares_kernel
        held.runner = Runner(record.id, held.guest, self._spool, self._exits, oom_kills, kernel_of_its_own=own)
        return held.runner

    async def _watch(self, held: _Held, record: Record, connection: Connection) -> None:
        """Wait for the sandbox's death. A connection that breaks without one is opened anew."""
        dead = asyncio.ensure_future(self._parts.runtime.wait_dead(record.id))
        try:
            while True:
                ended = asyncio.ensure_future(connection.wait_ended())
                await asyncio.wait((dead, ended), return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if not dead.done() and not isinstance(connection.error, ProtocolError):
                    await asyncio.wait((dead,), timeout=CAUSE_GRACE_S)
                if dead.done() or connection.error is None:
                    cause, detail = dead.result(), ""
                    break
                again = await self._again(held, record, connection.error)
                if isinstance(again, str):
                    cause, detail = Cause.RUNTIME_DIED, again
                    break
                connection = again
        finally:
            dead.cancel()
        async with held.lock:
            if held.record is record:  # else it was destroyed meanwhile
                await self._bury(held, record, cause, detail)

    async def _again(self, held: _Held, record: Record, error: SkerryError) -> Connection | str:
        """The connection opened anew through a bridge, commands resumed; or why the sandbox is given up."""
        if isinstance(error, ProtocolError):
            return f"The daemon inside broke its protocol, so the sandbox was ended. {error.message}"
        held.guest = held.runner = None

        async def attempt() -> Connection:
            connection = await steps.reconnect(self._parts, record)
            try:
                held.strangers = held.strangers or Strangers(record.spec.limits.processes)
                await self._link(held, record, connection).resume(self._group, held.strangers)
            except BaseException:
                held.guest = held.runner = None
                raise
            return connection

        back = await come_back(record.id, attempt, lambda: held.record is record, within_s=self.return_s)
        return back if isinstance(back, Connection) else f"The daemon inside does not answer any more. {back.message}"

    async def _bury(self, held: _Held, record: Record, cause: Cause, detail: str) -> None:
        """Record a death, end what went on inside, free the compute. The files are kept until destroy."""
        held.record = moved(record, Stage.DEAD, cause, detail)
        try:
            self._records.write(held.record)
        except OSError as error:
            log.error("a death could not be recorded; the next start finds it again", error=str(error))
        log.warning("a sandbox died", sandbox_id=record.id, cause=cause, detail=detail)
        self._drop(held, held.record, gone(held.record))
        self.deaths.tell(held.record.observed())
        await steps.release(self._parts, record.id)

    def _drop(self, held: _Held, record: Record, error: SandboxGone) -> None:
        """End all that goes on in a sandbox with `error`; its commands with an end that says why."""
        if held.guest is not None:
            held.guest.connection.abort(error)
        held.guest = held.runner = None
        end_all(record.id, self._spool, self._exits, oom=record.cause is Cause.OOM, detail=error.message)

    # -- before and after --------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Take over what an earlier node process left: whole sandboxes go on, half-made ones and leftovers go."""
        found, files = await steps.leftovers(self._parts)
        records = self._records.load()
        turns = asyncio.Semaphore(ADOPTED_AT_ONCE)
        for record in records:
            self._held[record.id] = _Held(record=record)

        async def one(record: Record) -> None:
            async with turns:
                await self._settle(self._held[record.id], record, record.id in files)

        async def stray(sandbox_id: SandboxId) -> None:
            async with turns:
                await steps.try_removing(sandbox_id, steps.remove(self._parts, sandbox_id))

        async with asyncio.TaskGroup() as group:
            for record in records:
                spawn(group, one(record), "adopt")
            for sandbox_id in found - {record.id for record in records}:
                spawn(group, stray(sandbox_id), "remove a leftover")
        end_orphans(self._spool, self._exits)

    async def _settle(self, held: _Held, record: Record, has_files: bool) -> None:
        """Find out what became of one sandbox."""
        held.users += 1
        try:
            async with held.lock:
                if record.host_boot != self._boot and record.stage in (Stage.RUNNING, Stage.CREATING) and has_files:
                    # A CREATING may be a RUNNING whose last line a power cut has taken: the files decide.
                    await self._bury(held, record, Cause.HOST_RESTART, "The host was restarted; the files are kept.")
                elif record.stage in (Stage.CREATING, Stage.DESTROYING):
                    await self._undo(held, record)
                elif record.stage is Stage.DEAD:
                    await steps.release(self._parts, record.id)
                elif not await self._parts.runtime.running(record.id):
                    cause = await self._parts.runtime.wait_dead(record.id)
                    await self._bury(held, record, cause, "It died while the node was down.")
                else:
                    await self._readopt(held, record)
        finally:
            self._done_with(record.id, held)

    async def _readopt(self, held: _Held, record: Record) -> None:
        coming = self._group.create_task(self._again(held, record, Unavailable("The node was restarted.")))
        if (await asyncio.wait((coming,), timeout=self.adopt_s))[0]:
            await self._readopted(held, record, coming.result())
        else:  # someone inside may hold the way shut: no other sandbox waits for that
            take_up(self._spool, record.id)
            spawn(self._group, self._readopt_later(held, record, coming), "adopt later")

    async def _readopt_later(self, held: _Held, record: Record, coming: asyncio.Task[Connection | str]) -> None:
        again = await coming
        async with held.lock:
            if held.record is record:
                await self._readopted(held, record, again)
            elif isinstance(again, Connection):
                again.abort(Unavailable("The sandbox was destroyed meanwhile."))

    async def _readopted(self, held: _Held, record: Record, again: Connection | str) -> None:
        if isinstance(again, str):
            await self._bury(held, record, Cause.RUNTIME_DIED, again)
        else:
            spawn(self._group, self._watch(held, record, again), "watch")

    async def tend(self) -> None:
        """Finish what could not be finished before: destroys that failed, and what appeared without a record.

        A runtime that was starting a sandbox when the last node was killed may have gone on behind our back. Called
        now and then; what is seen without a record twice in a row is removed.
        """
        for sandbox_id, held in list(self._held.items()):
            if held.record is not None and held.record.stage is Stage.DESTROYING and not held.users:
                await steps.try_removing(sandbox_id, self.destroy(sandbox_id))
        strays = (await steps.leftovers(self._parts))[0] - self._held.keys()
        for sandbox_id in strays & self._strays:
            await steps.try_removing(sandbox_id, steps.remove(self._parts, sandbox_id))
        self._strays = strays

    async def quiet(self) -> None:
        """Return when nothing is being made or unmade, or after a while: the next start finishes the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(15):
                while any(held.users for held in self._held.values()):  # noqa: ASYNC110 - once, at the end
                    await asyncio.sleep(0.01)

    async def stop_all(self) -> None:
        """End every sandbox's processes; the files are kept. For the end of the whole installation."""
        async with asyncio.TaskGroup() as group:
            for sandbox_id in list(self._held):
                spawn(group, self._stop(sandbox_id), "stop")

    async def _stop(self, sandbox_id: SandboxId) -> None:
        held = self._held[sandbox_id]
        held.users += 1
        try:
            async with held.lock:
                if held.record is not None and held.record.stage is Stage.RUNNING:
                    await self._bury(held, held.record, Cause.HOST_RESTART, "Skerry was stopped; the files are kept.")
        finally:
            self._done_with(sandbox_id, held)
