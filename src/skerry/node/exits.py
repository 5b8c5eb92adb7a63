"""Puts the ends of commands on disk, behind the back of whoever waits for them.

An end is told from memory at once, written by this loop a moment later, and only then forgotten by sbxd: a death of
this process in between loses nothing. A full disk keeps the ends in memory until they fit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping

import structlog

from skerry.model.errors import SkerryError
from skerry.model.ids import CommandId
from skerry.node.spool import Spool

RETRY_S = 5.0
GATHER_S = 0.15  # ends that come together are written together, and after their commands were answered
FORGET_AT_ONCE = 32

Forget = Callable[[CommandId], Awaitable[None]]

log = structlog.get_logger()


class Exits:
    """The queue between commands that have ended and the disk."""

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._waiting: dict[CommandId, Forget | None] = {}
        self._some = asyncio.Event()

    def keep(self, command_id: CommandId, forget: Forget | None) -> None:
        """Have this command's end written, then call `forget` (None: there is no sbxd to tell any more)."""
        self._waiting[command_id] = forget
        self._some.set()

    async def run(self) -> None:
        """Write until cancelled. What waits then is recovered from sbxd by the next start."""
        while True:
            await self._some.wait()
            await asyncio.sleep(GATHER_S)
            self._some.clear()
            batch, self._waiting = self._waiting, {}
            written = await asyncio.to_thread(self._write, list(batch))
            for at in range(0, len(written), FORGET_AT_ONCE):
                await self._forget_all({one: batch.pop(one) for one in written[at : at + FORGET_AT_ONCE]})
            if batch:
                log.error("ends of commands cannot be written; is the disk full?", waiting=len(batch))
                self._waiting = {**batch, **self._waiting}
                await asyncio.sleep(RETRY_S)
                self._some.set()

    def _write(self, batch: list[CommandId]) -> list[CommandId]:
        written: list[CommandId] = []
        for command_id in batch:
            try:
                self._spool.keep_exit(command_id)
            except OSError:
                continue
            written.append(command_id)
        return written

    async def _forget_all(self, ended: Mapping[CommandId, Forget | None]) -> None:
        """Together, so that each sandbox is woken once for what has ended in it."""
        async with asyncio.TaskGroup() as group:
            for command_id, forget in ended.items():
                self._spool.let_go(command_id)
                group.create_task(self._forget(command_id, forget), name="forget")

    async def _forget(self, command_id: CommandId, forget: Forget | None) -> None:
        if forget is None:
            return
        try:
            await forget(command_id)
        except SkerryError as error:
            # It stays in sbxd's list, and the next adoption finds that its end is on disk already.
            log.debug("sbxd did not forget a command", command_id=command_id, error=error.message)
