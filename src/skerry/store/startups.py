"""Startup commands and their runs, as functions of a connection. Part of `SqlStore`'s transactions."""

from sqlalchemy import Connection, exists, select, text, update
from sqlalchemy.dialects.sqlite import insert

from skerry.model.command import Command
from skerry.model.ids import CommandId, SandboxId
from skerry.model.sandbox import Sandbox
from skerry.model.startup import StartupRun
from skerry.store import moves, rows
from skerry.store.tables import sandboxes, startups

# A literal condition: only then is the partial index used.
DUE = select(sandboxes).where(
    text("(startup_command IS NOT NULL OR generation > 1 OR source IS NOT NULL) AND state = 'running'"),
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
    of = sandboxes.c
    chosen = select(of.startup_command, of.generation, of.source).where(of.id == sandbox.id)
    before = connection.execute(chosen).one_or_none()
    if before is None:
        return
    (earlier, generation, source) = before
    connection.execute(
        update(sandboxes).where(of.id == sandbox.id).values(startup_command=command, updated_at_us=at_us)
    )
    # One that came up with files is due until these were looked at.
    if earlier is None and generation == 1 and source is None:
        nothing_due = insert(startups).values(sandbox_id=sandbox.id, generation=generation)
        connection.execute(nothing_due.on_conflict_do_nothing(index_elements=["sandbox_id"]))


def skip(connection: Connection, sandbox: Sandbox, replaces: StartupRun | None) -> None:
    if get(connection, sandbox.id) != replaces:
        return
    new = {"generation": sandbox.generation}
    statement = insert(startups).values(sandbox_id=sandbox.id, **new)
    connection.execute(statement.on_conflict_do_update(index_elements=["sandbox_id"], set_=new))


def begin(connection: Connection, command: Command, generation: int, replaces: StartupRun | None) -> bool:
    if get(connection, command.sandbox_id) != replaces:
        return False
    if moves.check_running(connection, command.sandbox_id) != generation:
        return False
    run = {"generation": generation, "command_id": command.id, "ran_at_us": rows.to_us(command.started_at)}
    statement = insert(startups).values(sandbox_id=command.sandbox_id, **run)
    connection.execute(statement.on_conflict_do_update(index_elements=["sandbox_id"], set_=run))
    return True
