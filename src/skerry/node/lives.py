"""The life of a sandbox that runs: its connection, which is opened anew when it breaks, its commands, its death.

Whoever calls `bury`, `drop` or `readopt` holds the sandbox's lock. Makes and removes nothing but what a death frees.
"""

import asyncio
from functools import partial

import structlog

from skerry.guest.connection import Connection
from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.errors import ProtocolError, SandboxGone, SkerryError, Unavailable
from skerry.model.lifecycle import Cause
from skerry.node import steps
from skerry.node.commands import Runner, Strangers, end_all, end_orphans, take_up
from skerry.node.deaths import Deaths
from skerry.node.exits import Exits
from skerry.node.holding import Holding
from skerry.node.parts import Parts
from skerry.node.records import Record, Records, Stage, gone, moved
from skerry.node.returning import ADOPT_S, RETURN_S, come_back
from skerry.node.spool import Spool
from skerry.node.tasks import spawn

CAUSE_GRACE_S = 2.0  # a channel that ends because the sandbox died is usually seen before the death itself

log = structlog.get_logger()


class Lives:
    """The running sandboxes of one node. `group` runs what watches them."""

    def __init__(self, parts: Parts, records: Records, spool: Spool, group: asyncio.TaskGroup) -> None:
        self._parts = parts
        self._records = records
        self._spool = spool
        self._group = group
        self._exits = Exits(spool)
        self.deaths = Deaths()
        self.return_s, self.adopt_s = RETURN_S, ADOPT_S
        spawn(group, self._exits.run(), "exits")

    def end_orphans(self) -> None:
        """End the commands that no sandbox knows any more."""
        end_orphans(self._spool, self._exits)

    def take(self, held: Holding, record: Record, connection: Connection) -> None:
        """A connection is up: commands may run, and the sandbox is watched."""
        self._link(held, record, connection)
        spawn(self._group, self._watch(held, record, connection), "watch")

    def _link(self, held: Holding, record: Record, connection: Connection) -> Runner:
        oom_kills = partial(self._parts.runtime.oom_kills, record.id)
        held.guest = SbxdGuest(connection)
        own = not self._parts.runtime.shares_kernel
        held.runner = Runner(record.id, held.guest, self._spool, self._exits, oom_kills, kernel_of_its_own=own)
        return held.runner

    async def _watch(self, held: Holding, record: Record, connection: Connection) -> None:
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
                await self.bury(held, record, cause, detail)

    async def _again(self, held: Holding, record: Record, error: SkerryError) -> Connection | str:
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

    async def bury(self, held: Holding, record: Record, cause: Cause, detail: str) -> None:
        """Record a death, end what went on inside, free the compute. The files are kept until destroy."""
        held.record = moved(record, Stage.DEAD, cause, detail)
        try:
            self._records.write(held.record)
        except OSError as error:
            log.error("a death could not be recorded; the next start finds it again", error=str(error))
        log.warning("a sandbox died", sandbox_id=record.id, cause=cause, detail=detail)
        self.drop(held, held.record, gone(held.record))
        self.deaths.tell(held.record.observed())
        await steps.release(self._parts, record.id)

    def drop(self, held: Holding, record: Record, error: SandboxGone) -> None:
        """End all that goes on in a sandbox with `error`; its commands with an end that says why."""
        if held.guest is not None:
            held.guest.connection.abort(error)
        held.guest = held.runner = None
        end_all(record.id, self._spool, self._exits, oom=record.cause is Cause.OOM, detail=error.message)

    async def readopt(self, held: Holding, record: Record) -> None:
        coming = self._group.create_task(self._again(held, record, Unavailable("The node was restarted.")))
        if (await asyncio.wait((coming,), timeout=self.adopt_s))[0]:
            await self._readopted(held, record, coming.result())
        else:  # someone inside may hold the way shut: no other sandbox waits for that
            take_up(self._spool, record.id)
            spawn(self._group, self._readopt_later(held, record, coming), "adopt later")

    async def _readopt_later(self, held: Holding, record: Record, coming: asyncio.Task[Connection | str]) -> None:
        again = await coming
        async with held.lock:
            if held.record is record:
                await self._readopted(held, record, again)
            elif isinstance(again, Connection):
                again.abort(Unavailable("The sandbox was destroyed meanwhile."))

    async def _readopted(self, held: Holding, record: Record, again: Connection | str) -> None:
        if isinstance(again, str):
            await self.bury(held, record, Cause.RUNTIME_DIED, again)
        else:
            spawn(self._group, self._watch(held, record, again), "watch")
