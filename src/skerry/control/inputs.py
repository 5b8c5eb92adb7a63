"""A command's standard input, sent by clients while it runs. In flat memory: what is sent waits for the command."""

from collections.abc import AsyncIterator

from skerry.control import commands, idleness
from skerry.control.deps import Deps
from skerry.control.streams import closing
from skerry.model.command import Command, CommandStatus
from skerry.model.errors import Conflict
from skerry.model.ids import AccountId


async def check_open(deps: Deps, account_id: AccountId, command_id: str) -> Command:
    """The command, if it runs and takes input.

    Raises:
        NotFound: As `commands.get`.
        Conflict: It takes none (`no_input`), or has ended (`command_ended`).
    """
    command = await commands.get(deps, account_id, command_id)
    if not command.takes_input:
        raise Conflict(
            f"'{command.id}' takes no input: its stdin was closed at its start. Start it with 'stdin_stream'.",
            code="no_input",
        )
    if command.status is not CommandStatus.RUNNING:
        raise Conflict(f"'{command.id}' has ended: nothing reads its input any more.", code="command_ended")
    return command


async def send(deps: Deps, command: Command, chunks: AsyncIterator[bytes], *, end: bool) -> int:
    """Pass `chunks` on as they come, and with `end` end the input after them; how many bytes. Not idempotent.

    Bytes for a command that ends meanwhile, or has closed its stdin, are swallowed.

    Raises:
        SandboxGone, Unavailable: The way inside broke. How much has arrived is not known.
    """
    guest = deps.provider.guest(command.sandbox_id)
    sent = 0
    async with idleness.using(deps, command.sandbox_id), closing(chunks):
        async for chunk in chunks:
            await guest.write_stdin(command.id, chunk)
            sent += len(chunk)
    if end:
        await guest.close_stdin(command.id)
    return sent
