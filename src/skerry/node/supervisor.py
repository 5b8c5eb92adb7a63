"""Owns the sandboxes of this host: makes them, watches them die, takes them over after its own death, destroys them.

Each verb is serialised per sandbox and writes its intent down before it acts; the steps themselves are in `steps`.
Knows no account, no template's contents and no socket.
"""

import asyncio
import builtins
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import structlog

from skerry.guest.hello import SECRET_BYTES
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.errors import (
    Conflict,
    DeadlineExceeded,
    NotFound,
    Refused,
    SandboxGone,
    SkerryError,
    TooBusy,
    Unavailable,
)
from skerry.model.ids import SandboxId, TreeId, is_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Observed, Placement, SandboxSpec
from skerry.node import steps
from skerry.node.commands import Runner
from skerry.node.holding import Holding
from skerry.node.lives import Lives
from skerry.node.parts import Parts
from skerry.node.records import Record, Records, Stage, free_id_base, gone, host_boot, moved, stopped, stopping
from skerry.node.spool import Spool
from skerry.node.tasks import root_cause, spawn, through
from skerry.node.works import Works

CREATE_S = 90.0
ADOPTED_AT_ONCE = 8
MAX_WAITING = 512  # creates that wait for their turn; more are told to come back

log = structlog.get_logger()


class Supervisor:
    """The sandboxes of one node. `group` runs its tasks; what it started ends with it, the sandboxes do not."""

    def __init__(
        self, parts: Parts, records: Records, spool: Spool, group: asyncio.TaskGroup, first_range: int = 0
    ) -> None:
        self._parts = parts
        self._records = records
        self._group = group
        self._first_range = first_range
        self.lives = Lives(parts, records, spool, group)
        self.works = Works(group)
        self._held: dict[SandboxId, Holding] = {}
        self._slots = asyncio.Semaphore(2 + 2 * (os.cpu_count() or 1))
        self._creating = 0
        self._strays: set[SandboxId] = set()
        self._boot = host_boot()

    # -- what the provider asks --------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec, tree: TreeId | None = None) -> Placement:
        """See `seams.Provider.create`. A caller that goes away cancels it, and nothing is left but what was kept."""
        if not is_id(spec.id, "sbx"):
            raise NotFound(f"'{spec.id}' is not a sandbox's id.")
        if self._creating >= MAX_WAITING:
            raise TooBusy(f"{MAX_WAITING} sandboxes wait to be made on this node. Try again in a moment.")
        self._creating += 1
        try:
            async with self.locked(spec.id) as held:
                return await self._create(held, spec, tree)
        finally:
            self._creating -= 1

    async def _create(self, held: Holding, spec: SandboxSpec, tree: TreeId | None) -> Placement:
        resumes = tree == spec.id
        try:
            async with asyncio.timeout(0 if held.unwanted else CREATE_S) as held.scope:
                if held.record is not None:
                    placement = await self._known(held, held.record, spec, resumes=resumes)
                    if placement is not None:
                        return placement
                async with self._slots:
                    if not resumes:
                        return await self._make(held, spec, tree)
                    async with self.works.closed(TreeId(spec.id)):
                        return await self._resume(held, spec)
        except TimeoutError as error:
            if held.unwanted:
                raise Conflict(f"Sandbox {spec.id} was destroyed while it was being made.") from error
            left = "its files are kept" if resumes else "nothing of it is left"
            raise DeadlineExceeded(f"The sandbox was not up within {CREATE_S:g} s; {left}.") from error
        finally:
            held.scope = None

    async def _known(self, held: Holding, record: Record, spec: SandboxSpec, *, resumes: bool) -> Placement | None:
        """The answer to a create of what is here already; None: go on, with what was kept or with nothing."""
        if spec.generation < record.spec.generation:
            raise Conflict(f"Sandbox {spec.id} is at generation {record.spec.generation} here, not {spec.generation}.")
        if record.stage is Stage.CREATING and spec.generation == record.spec.generation:
            await through(self._group, self._undo(held, record))
            return None
        if record.stage in (Stage.STOPPING, Stage.RESUMING):  # left by one that failed, or by a crash
            record = await through(self._group, self._put_down(held, record))
        newer = spec.generation > record.spec.generation
        if newer and resumes and record.stage in (Stage.STOPPED, Stage.DEAD):
            return None
        if newer or record.stage in (Stage.DESTROYING, Stage.STOPPED):
            raise Conflict(f"Sandbox {spec.id} exists here ({record.stage}). Destroy it before it is made anew.")
        if record.stage is Stage.DEAD:
            raise gone(record)
        return Placement(record.runtime, record.template_digest)

    async def _resume(self, held: Holding, spec: SandboxSpec) -> Placement:
        if not await self._parts.trees.holds(TreeId(spec.id)):
            raise NotFound(f"The files of {spec.id} are not on this node.", code="tree_missing")
        before = 0 if held.record is None else held.record.spec.generation
        return await self._make(held, spec, None, resumed_from=before)

    async def _make(
        self, held: Holding, spec: SandboxSpec, source: TreeId | None, *, resumed_from: int | None = None
    ) -> Placement:
        image = await self._parts.images.ready(spec.template)
        record = held.record = Record(
            spec=spec,
            stage=Stage.CREATING if resumed_from is None else Stage.RESUMING,
            runtime=self._parts.runtime.name,
            template_digest=image.digest,
            template_root=image.root,
            secret=secrets.token_bytes(SECRET_BYTES),
            host_boot=self._boot,
            id_base=free_id_base(self._all(), self._first_range) if self._parts.runtime.needs_id_range else None,
            resumed_from=resumed_from,
        )
        try:
            self._records.write(record)
            connection = await steps.start(self._parts, record, source, self._group)
            held.record = moved(record, Stage.RUNNING)
            self._records.write(held.record)
        except BaseException as error:
            undo = self._undo if resumed_from is None else self._put_down
            await through(self._group, undo(held, record))
            raise _reason(error) from error
        self.lives.take(held, held.record, connection)
        log.info("a sandbox was made", sandbox_id=record.id, template=record.spec.template, resumed=resumed_from)
        return Placement(record.runtime, record.template_digest)

    async def _undo(self, held: Holding, record: Record) -> None:
        """Remove what was made. If that fails, the record stays as DESTROYING, and `tend` tries again."""
        held.record = moved(record, Stage.DESTROYING)
        with suppress(OSError):  # on a full disk CREATING stays there, which is cleaned up just as well
            self._records.write(held.record)
        await steps.remove(self._parts, record.id)
        self._records.remove(record.id)
        held.record = None

    async def _put_down(self, held: Holding, record: Record, over: int = 0) -> Record:
        """End its compute and keep its workspace. If that fails, the record stays as STOPPING, and `tend` tries again.

        Raises:
            NotFound: It has none; nothing of it is left then.
        """
        held.record = stopping(record, over)
        with suppress(OSError):  # on a full disk the stage before stays there: the next start buries it, or comes here
            self._records.write(held.record)
        self.lives.drop(held, held.record, gone(held.record))
        try:
            await steps.halt(self._parts, record.id)
        except Exception as error:
            missing = root_cause(error, NotFound)
            if not isinstance(missing, NotFound):
                raise
            await self._undo(held, held.record)
            raise missing from None
        held.record = stopped(held.record)
        with suppress(OSError):
            self._records.write(held.record)
        return held.record

    async def stop(self, sandbox_id: SandboxId, generation: int) -> None:
        """See `seams.Provider.stop`. Once begun it goes on, whoever waits for it."""
        if not is_id(sandbox_id, "sbx"):
            raise NotFound(f"'{sandbox_id}' is not a sandbox's id.")
        await through(self._group, self._stop(sandbox_id, generation))

    async def _stop(self, sandbox_id: SandboxId, generation: int) -> None:
        async with self.locked(sandbox_id) as held:
            record = held.record
            if record is not None and record.stage is Stage.CREATING:
                await self._undo(held, record)  # it was never told to anybody
                record = None
            if record is None:
                if not await self._parts.trees.holds(TreeId(sandbox_id)):
                    raise NotFound(f"This node has no sandbox {sandbox_id}: it was destroyed, or never made here.")
                return
            over = record.spec.generation if record.stage is not Stage.RESUMING else 0
            if generation < over or (generation == over and record.stage is Stage.STOPPED):
                return
            if record.stage is Stage.DESTROYING:
                raise Conflict(f"Sandbox {sandbox_id} is being destroyed.")
            await self._put_down(held, record, generation)
            log.info("a sandbox was stopped", sandbox_id=sandbox_id)

    @asynccontextmanager
    async def locked(self, sandbox_id: SandboxId) -> AsyncGenerator[Holding]:
        """What is held of a sandbox, to oneself. It has no record where nothing is."""
        held = self._held.setdefault(sandbox_id, Holding())
        held.users += 1
        try:
            async with held.lock:
                yield held
        finally:
            self._done_with(sandbox_id, held)

    async def drop(self, sandbox_id: SandboxId) -> None:
        """See `seams.Provider.drop`, of a sandbox's tree."""
        await through(self._group, self._drop(sandbox_id))

    async def _drop(self, sandbox_id: SandboxId) -> None:
        async with self.locked(sandbox_id) as held, self.works.closed(TreeId(sandbox_id)):
            record = held.record
            if record is not None and record.stage is not Stage.STOPPED:
                raise Conflict(f"Sandbox {sandbox_id} is {record.stage}. Its files can be dropped once it is stopped.")
            if record is not None:
                await self._undo(held, record)
            await self._parts.trees.drop(TreeId(sandbox_id))

    async def destroy(self, sandbox_id: SandboxId) -> None:
        """See `seams.Provider.destroy`. Once begun it goes on, whoever waits for it."""
        if is_id(sandbox_id, "sbx"):
            await through(self._group, self._destroy(sandbox_id, self._held.setdefault(sandbox_id, Holding())))

    async def _destroy(self, sandbox_id: SandboxId, held: Holding) -> None:
        held.users += 1
        held.unwanted = True
        if held.scope is not None:
            held.scope.reschedule(asyncio.get_running_loop().time())
        try:
            async with held.lock, self.works.closed(TreeId(sandbox_id)):
                held.unwanted = False
                if held.record is not None:
                    record = held.record
                    held.record = moved(record, Stage.DESTROYING)
                    self.lives.drop(held, held.record, SandboxGone("The sandbox was destroyed.", cause="destroyed"))
                    await self._undo(held, record)
                    log.info("a sandbox was destroyed", sandbox_id=sandbox_id)
                await self._parts.trees.drop(TreeId(sandbox_id))
        finally:
            self._done_with(sandbox_id, held)

    def _done_with(self, sandbox_id: SandboxId, held: Holding) -> None:
        held.users -= 1
        if held.record is None and not held.users:
            self._held.pop(sandbox_id, None)

    @property
    def known(self) -> set[SandboxId]:
        """Those that are on record here, or that somebody is at work on."""
        return set(self._held)

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
        if held.record.stage not in (Stage.CREATING, Stage.RUNNING, Stage.RESUMING):
            raise gone(held.record)
        raise Unavailable(f"Sandbox {sandbox_id} is {held.record.stage} and cannot be reached now: try again.")

    # -- before and after --------------------------------------------------------------------------------------

    async def adopt(self) -> None:
        """Take over what an earlier node process left: whole sandboxes go on, half-made ones and leftovers go."""
        found, files = await steps.leftovers(self._parts)
        records = self._records.load()
        turns = asyncio.Semaphore(ADOPTED_AT_ONCE)
        for record in records:
            self._held[record.id] = Holding(record=record)

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
        self.lives.end_orphans()

    async def _settle(self, held: Holding, record: Record, has_files: bool) -> None:
        """Find out what became of one sandbox."""
        held.users += 1
        try:
            async with held.lock:
                # One being made may be a RUNNING whose last line a power cut has taken: the files decide.
                maybe_ran = record.stage in (Stage.CREATING, Stage.RESUMING) and has_files
                if record.host_boot != self._boot and (maybe_ran or record.stage is Stage.RUNNING):
                    kept = "the files are kept" if has_files else "the files had not reached the disk"
                    await self.lives.bury(held, record, Cause.HOST_RESTART, f"The host was restarted; {kept}.")
                elif record.stage in (Stage.CREATING, Stage.DESTROYING):
                    await self._undo(held, record)
                elif record.stage in (Stage.STOPPING, Stage.RESUMING):
                    with suppress(NotFound):
                        await self._put_down(held, record)
                elif record.stage is Stage.STOPPED:
                    if not has_files:
                        await self._undo(held, record)
                elif record.stage is Stage.DEAD:
                    await steps.release(self._parts, record.id)
                elif not await self._parts.runtime.running(record.id):
                    cause = await self._parts.runtime.wait_dead(record.id)
                    await self.lives.bury(held, record, cause, "It died while the node was down.")
                else:
                    await self.lives.readopt(held, record)
        finally:
            self._done_with(record.id, held)

    async def tend(self) -> None:
        """Finish what could not be finished before: destroys that failed, and what appeared without a record.

        A runtime that was starting a sandbox when the last node was killed may have gone on behind our back. Called
        now and then; what is seen without a record twice in a row is removed.
        """
        for sandbox_id, held in list(self._held.items()):
            if held.record is not None and not held.users:
                if held.record.stage is Stage.DESTROYING:
                    await steps.try_removing(sandbox_id, self.destroy(sandbox_id))
                elif held.record.stage is Stage.STOPPING:
                    await steps.try_removing(sandbox_id, self.stop(sandbox_id, held.record.spec.generation))
        strays = (await steps.leftovers(self._parts))[0] - self._held.keys()
        for sandbox_id in strays & self._strays:
            await steps.try_removing(sandbox_id, steps.remove(self._parts, sandbox_id))
        self._strays = strays
        await self._parts.trees.tidy()

    async def quiet(self) -> None:
        """Return when nothing is being made or unmade, or after a while: the next start finishes the rest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(15):
                while self.works.busy or any(held.users for held in self._held.values()):  # noqa: ASYNC110 - once, at the end
                    await asyncio.sleep(0.01)

    async def stop_all(self) -> None:
        """End every sandbox's processes; the files are kept. For the end of the whole installation."""
        async with asyncio.TaskGroup() as group:
            for sandbox_id in list(self._held):
                spawn(group, self._end(sandbox_id), "end")

    async def _end(self, sandbox_id: SandboxId) -> None:
        async with self.locked(sandbox_id) as held:
            if held.record is not None and held.record.stage is Stage.RUNNING:
                why = "Skerry was stopped; the files are kept."
                await self.lives.bury(held, held.record, Cause.HOST_RESTART, why)


def _reason(error: BaseException) -> BaseException:
    """Of all that went wrong in a create, what its caller is told."""
    cause = root_cause(error, SkerryError)
    if isinstance(cause, OSError):
        return Refused(f"The host could not make the sandbox: {cause}. `skerry doctor` may tell more.")
    return cause
