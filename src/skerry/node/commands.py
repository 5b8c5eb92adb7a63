"""The commands of one running sandbox: started in sbxd, their output moved to the spool, whoever watches or not.

Lives as long as one connection to sbxd; after a reconnect, `resume` goes on where the spool ends. Callers that go away
stop nothing here.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from typing import cast

import structlog

from skerry.guest.sbxd_guest import SbxdGuest
from skerry.model.command import CommandCause, CommandEvent, ExecSpec, Exit, Lost, Output, TerminalSize
from skerry.model.errors import Invalid, NotFound, SkerryError
from skerry.model.ids import CommandId, SandboxId
from skerry.node.exits import Exits, Forget
from skerry.node.spool import Spool
from skerry.node.spool_writer import Writer
from skerry.node.tasks import spawn

SIGKILL = 9
OOM_WINDOW_S = 0.3
# What gVisor shows for a process of which the host's kernel has killed the half that runs on it.
KILLED_BELOW = 1

log = structlog.get_logger()


@dataclass(slots=True)
class Strangers:
    """Commands of a sandbox that its sbxd tells of and that this process has not started: `most` may still be taken.

    Those of an earlier node process are such. But whoever owns sbxd may list any number at each reconnect, and what
    each prints is kept on the host's disk. Every command is a process: there were never more than it may have.
    """

    most: int

    def admit(self) -> bool:
        self.most -= 1
        return self.most >= 0


class Runner:
    """Starts commands and pumps their output. `oom_kills` counts the kernel's kills for the sandbox's memory limit.

    `kernel_of_its_own`: those kills fall on the runtime's processes, and show inside as an exit, not as a signal.
    """

    def __init__(
        self,
        sandbox_id: SandboxId,
        guest: SbxdGuest,
        spool: Spool,
        exits: Exits,
        oom_kills: Callable[[], Awaitable[int]],
        *,
        kernel_of_its_own: bool,
    ) -> None:
        self._sandbox_id = sandbox_id
        self._guest = guest
        self._spool = spool
        self._exits = exits
        self._oom_kills = oom_kills
        self._kernel_of_its_own = kernel_of_its_own
        self._oom_seen = 0
        self._oom_until_s = 0.0
        self._oom_before: dict[CommandId, int] = {}  # kills at the start of each command, where that is needed
        self._starting: dict[CommandId, asyncio.Future[None]] = {}

    async def exec(self, spec: ExecSpec, group: asyncio.TaskGroup) -> None:
        """Start a command; returns once it runs. Known here: does nothing. See `seams.Guest.exec`."""
        started = self._starting.get(spec.id)
        if started is None:
            if spec.id in self._spool:
                self._spool.check_owner(spec.id, self._sandbox_id)
                return
            writer = self._spool.start(self._sandbox_id, spec.id, spec.keep)
            self._spool.check_owner(spec.id, self._sandbox_id)
            writer.begin()
            started = self._starting[spec.id] = asyncio.get_running_loop().create_future()
            # A task of its own: the caller may go at any moment, and the command must still have its reader.
            spawn(group, self._run(spec, writer, started), "command")
        await asyncio.shield(started)

    async def _run(self, spec: ExecSpec, writer: Writer, started: asyncio.Future[None]) -> None:
        if self._kernel_of_its_own:
            self._oom_before[spec.id] = await self._oom_kills()
        try:
            await self._guest.exec(spec)
        except SkerryError as error:
            self._oom_before.pop(spec.id, None)
            self._spool.discard(spec.id)
            started.set_exception(error)
            started.exception()  # the caller may have gone: that is no mistake
            return
        except BaseException:
            started.cancel()
            raise
        finally:
            del self._starting[spec.id]
        started.set_result(None)
        await self._pump(spec.id, writer)

    async def resume(self, group: asyncio.TaskGroup, strangers: Strangers) -> None:
        """After a reconnect: go on with every command that sbxd has, from where its spool ends."""
        self._oom_seen = await self._oom_kills()
        inside = {command.id for command in await self._guest.commands()}
        for command_id in inside:
            live = self._spool.live(command_id)
            if live is None and self._ended(command_id):
                await self._guest.forget(command_id)
                continue
            if live is None and not strangers.admit():
                continue
            with suppress(Invalid):  # an id that is none of ours: whoever owns sbxd may list anything
                writer = self._spool.start(self._sandbox_id, command_id)
                if writer.sandbox_id == self._sandbox_id and writer.exit is None:
                    spawn(group, self._pump(command_id, writer), "command")
        for command_id, writer in self._spool.live_of(self._sandbox_id).items():
            if command_id not in inside and writer.exit is None:
                self._end(command_id, writer, _unknown_end(writer, "sbxd knows it no more"), None)

    def _ended(self, command_id: CommandId) -> bool:
        try:
            return self._spool.exit_of(command_id) is not None
        except NotFound:
            return False

    async def _pump(self, command_id: CommandId, writer: Writer) -> None:
        """Move a command's output from sbxd to the spool until its end. Asking for more acknowledges what came."""
        try:
            attached = cast(AsyncGenerator[CommandEvent], self._guest.attach(command_id, writer.end))
            async with aclosing(attached) as events:
                async for event in events:
                    if isinstance(event, Output):
                        await writer.append(event.channel, event.data)
                    elif isinstance(event, Lost):
                        writer.lost(event.offset + event.length)
                    else:
                        exit = await self._explained(command_id, event)
                        self._end(command_id, writer, exit, self._guest.forget)
        except NotFound:
            self._end(command_id, writer, _unknown_end(writer, "sbxd knows it no more"), None)
        except SkerryError as error:
            # The connection broke: the supervisor reconnects and resumes, or finds the sandbox dead.
            log.info("stopped following a command", command_id=command_id, why=error.message)

    async def _explained(self, command_id: CommandId, exit: Exit) -> Exit:
        """Tell the kernel's kill for memory from any other end, by its counter having moved."""
        if exit.timed_out:
            return exit
        if self._kernel_of_its_own and exit.code == KILLED_BELOW:
            before = self._oom_before.get(command_id, self._oom_seen)
            if await self._oom_kills() == before:
                return exit
            # The code is of gVisor's making: none is better than that one.
            return replace(exit, code=None, cause=CommandCause.OOM, detail=_OUT_OF_MEMORY)
        if exit.signal != SIGKILL:
            return exit if exit.signal is None else replace(exit, cause=CommandCause.SIGNAL)
        kills, now = await self._oom_kills(), time.monotonic()
        if kills > self._oom_seen:
            # One step of the counter may have been several commands' end.
            self._oom_seen, self._oom_until_s = kills, now + OOM_WINDOW_S
        if now >= self._oom_until_s:
            return replace(exit, cause=CommandCause.SIGNAL)
        return replace(exit, cause=CommandCause.OOM, detail=_OUT_OF_MEMORY)

    def _end(self, command_id: CommandId, writer: Writer, exit: Exit, forget: Forget | None) -> None:
        self._oom_before.pop(command_id, None)
        if writer.exit is None:
            writer.finish(replace(exit, offset=writer.end))
            self._exits.keep(command_id, forget)

    # -- acting on a command that runs; an ended one is left alone ----------------------------------------------

    async def signal(self, command_id: CommandId, signal: int, scope: str) -> None:
        if await self._runs(command_id):
            await self._guest.signal(command_id, signal, scope)

    async def kill(self, command_id: CommandId) -> None:
        if await self._runs(command_id):
            if (writer := self._spool.live(command_id)) is not None:
                writer.release()
            await self._guest.kill(command_id)

    async def resize(self, command_id: CommandId, size: TerminalSize) -> None:
        if await self._runs(command_id):
            await self._guest.resize(command_id, size)

    async def write_stdin(self, command_id: CommandId, data: bytes) -> None:
        if await self._runs(command_id):
            await self._guest.write_stdin(command_id, data)

    async def close_stdin(self, command_id: CommandId) -> None:
        if await self._runs(command_id):
            await self._guest.close_stdin(command_id)

    async def _runs(self, command_id: CommandId) -> bool:
        self._spool.check_owner(command_id, self._sandbox_id)
        if (started := self._starting.get(command_id)) is not None:
            await asyncio.shield(started)
        return self._spool.exit_of(command_id) is None


_OUT_OF_MEMORY = "The sandbox's memory limit was reached and the kernel killed the command."


def end_all(sandbox_id: SandboxId, spool: Spool, exits: Exits, *, oom: bool, detail: str) -> None:
    """End every command of a dead sandbox that has no end yet, with the sandbox's death as the cause."""
    cause = CommandCause.OOM if oom else CommandCause.SANDBOX_GONE
    for command_id, writer in spool.live_of(sandbox_id).items():
        if writer.exit is None:
            writer.finish(_unknown_end(writer, detail, cause))
            exits.keep(command_id, None)


def take_up(spool: Spool, sandbox_id: SandboxId) -> None:
    """Have the unfinished commands of a sandbox count as running, before it can be asked what became of them."""
    for command_id, owner in list(spool.unfinished()):
        if owner == sandbox_id:
            spool.start(owner, command_id)


def end_orphans(spool: Spool, exits: Exits) -> None:
    """End commands that have output, no end, and no sandbox that still knows them."""
    for command_id, sandbox_id in list(spool.unfinished()):
        writer = spool.start(sandbox_id, command_id)
        writer.finish(_unknown_end(writer, "Its sandbox died while the node was down."))
        exits.keep(command_id, None)


def _unknown_end(writer: Writer, detail: str, cause: CommandCause = CommandCause.SANDBOX_GONE) -> Exit:
    duration_ms = max(0, round((time.time() - writer.started_at_s) * 1000))
    return Exit(None, None, False, writer.end, duration_ms, cause, detail)
