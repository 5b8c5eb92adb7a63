"""Startup commands and their runs, as functions of a connection. Part of `SqlStore`'s transactions."""

from sqlalchemy import Connection, exists, select, text, update
from sqlalchemy.dialects.sqlite import insert

from skerry.model.command import Command
from skerry.model.ids import CommandId, SandboxId
from skerry.model.sandbox import Sandbox
from skerry.model.startup import StartupRun
from skerry.store import rows
from skerry.store.tables import sandboxes, startups

# A literal condition: only then is the partial index used.
DUE = select(sandboxes).where(
    text("startup_command IS NOT NULL AND state = 'running'"),
    ~exists().where(startups.c.sandbox_id == sandboxes.c.id, startups.c.generation >= sandboxes.c.generation),
)


def get(connection: Connection, sandbox_id: SandboxId) -> StartupRun | None:
    row = connection.execute(select(startups).where(startups.c.sandbox_id == sandbox_id)).one_or_none()
    if row is None:
        return None
    (sandbox, generation, command, ran_at) = row
    ran = None if ran_at is None else rows.from_us(ran_at)
    return StartupRun(SandboxId(sandbox), generation, None if command is None else CommandId(command), ran)


def set_command(connection: Connection, sandbox: Sandbox, command: str | None, at_us: int) -> None:
    chosen = sandboxes.c.id == sandbox.id
    before = connection.execute(select(sandboxes.c.startup_command, sandboxes.c.generation).where(chosen)).one_or_none()
    if before is None:
        return
    connection.execute(update(sandboxes).where(chosen).values(startup_command=command, updated_at_us=at_us))
    if before[0] is None:
        nothing_due = insert(startups).values(sandbox_id=sandbox.id, generation=before[1])
        connection.execute(
            nothing_due.on_conflict_do_update(
                index_elements=["sandbox_id"],
                set_={"generation": before[1]},
                where=startups.c.generation < before[1],
            )
        )


def begin(connection: Connection, command: Command, generation: int, replaces: StartupRun | None) -> bool:
    if get(connection, command.sandbox_id) != replaces:
        return False
    run = {"generation": generation, "command_id": command.id, "ran_at_us": rows.to_us(command.started_at)}
    statement = insert(startups).values(sandbox_id=command.sandbox_id, **run)
    connection.execute(statement.on_conflict_do_update(index_elements=["sandbox_id"], set_=run))
    return True
