"""A running command in the hands of one client: what it prints from an offset on, and what the client does to it.

This is all that the data path (`edge`) is given. Whose command it is was settled before one of these is made.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

from skerry.control import accounts, endings, following, idleness, terminals
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.command import Command, CommandEvent, Exit, TerminalSize


@dataclass(frozen=True, slots=True)
class Attachment:
    """Any number may exist of one command, each at its own pace."""

    deps: Deps
    command: Command

    async def output(self, offset: int) -> AsyncIterator[CommandEvent]:
        """Its events from `offset` on, to its Exit, which is on record when it is given. See `following.follow`."""
        async with (
            idleness.using(self.deps, self.command.sandbox_id),
            closing(following.follow(self.deps, self.command, offset)) as events,
        ):
            async for event in events:
                if isinstance(event, Exit):
                    ended = await endings.end_command(self.deps, self.command, event)
                    event = ended.exit or event
                yield event

    async def write(self, data: bytes) -> None:
        """Pass input on; returns when it is on its way inside. Ended: nothing happens."""
        await self.deps.provider.guest(self.command.sandbox_id).write_stdin(self.command.id, data)

    async def end_input(self) -> None:
        await self.deps.provider.guest(self.command.sandbox_id).close_stdin(self.command.id)

    async def revoked(self) -> None:
        """Return when a key of the account was deleted: whoever is attached has to show a good one again."""
        await accounts.key_deleted(self.deps, self.command.account_id)

    async def resize(self, size: TerminalSize) -> None:
        await terminals.resize_command(self.deps, self.command, size)

    async def signal(self, number: int) -> None:
        await self.deps.provider.guest(self.command.sandbox_id).signal(self.command.id, number, "group")
