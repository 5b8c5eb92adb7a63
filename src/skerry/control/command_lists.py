"""Lists of a sandbox's commands, page by page. Without their output, and never of another account."""

from collections.abc import Sequence
from dataclasses import replace

from skerry.control import commands, sandboxes
from skerry.control.deps import Deps
from skerry.model.command import Command, CommandFilter
from skerry.model.errors import Invalid, NotFound
from skerry.model.ids import AccountId, CommandId

PAGE_LIMIT = 200  # a record holds up to 128 KiB of command line


async def list_page(
    deps: Deps, account_id: AccountId, sandbox_id: str, *, where: CommandFilter, limit: int, before: str | None
) -> tuple[Sequence[Command], CommandId | None]:
    """One page, newest first, and the `before` of the next one. Of a sandbox in any state, destroyed ones too.

    Raises:
        NotFound: There is no such sandbox, or it is another account's.
        Invalid: `before` is no command of this sandbox.
    """
    sandbox = await sandboxes.get(deps, account_id, sandbox_id)
    if before is not None:
        where = replace(where, before=await _of(deps, account_id, sandbox.id, before))
    found = await deps.store.list_commands(sandbox_id=sandbox.id, where=where, limit=limit + 1)
    page = found[:limit]
    return page, page[-1].id if len(found) > limit else None


async def _of(deps: Deps, account_id: AccountId, sandbox_id: str, command_id: str) -> CommandId:
    try:
        command = await commands.get(deps, account_id, command_id)
    except NotFound:
        command = None
    if command is None or command.sandbox_id != sandbox_id:
        raise Invalid(f"'{command_id[:64]}' is no command of this sandbox to page from.", field="before")
    return command.id
