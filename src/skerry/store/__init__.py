"""The records: accounts, sandboxes, commands, and every move they made. Knows no HTTP and decides nothing."""

from functools import partial
from pathlib import Path

from sqlalchemy import Connection, delete, select

from skerry.clock import SystemClock
from skerry.model.errors import Invalid
from skerry.seams import Clock
from skerry.store import rows, sealing
from skerry.store.migrate import migrate
from skerry.store.sqlite import Sqlite, database_path
from skerry.store.store import SqlStore
from skerry.store.tables import chores

__all__ = ["SqlStore", "open_store"]


async def open_store(url: str, clock: Clock | None = None, *, secrets_file: Path | None = None) -> SqlStore:
    """Open the database, bring its schema up to date and return the store. `sqlite:///<absolute path>` for now.

    `secrets_file` holds the keys that secrets are sealed with; left out, it is `secrets.key` beside the database. It is
    made where nothing is sealed yet.

    Raises:
        Invalid: The URL names no database that this version can use.
        Unavailable: The database cannot be opened, or was made by a newer version; the keys are missing or others.
    """
    if not url.startswith("sqlite"):
        raise Invalid(f"Database '{url.split(':')[0]}' is not supported. Use sqlite:///<path>.", field="database_url")
    path = database_path(url)
    database = Sqlite(path)
    clock = clock or SystemClock()
    try:
        await database.open()
        await database.write_long(migrate)
        keys = secrets_file or path.with_name("secrets.key")
        box = await database.write_long(partial(sealing.prepare, path=keys, now_us=rows.to_us(clock.now())))
        await _do_chores(database)
    except BaseException:
        await database.close()
        raise
    return SqlStore(database, clock, box)


async def _do_chores(database: Sqlite) -> None:
    """What a migration has left to do. It is forgotten when it is done, and done again after a death in between."""

    def left(connection: Connection) -> bool:
        return connection.execute(select(chores)).first() is not None

    def forget(connection: Connection) -> None:
        connection.execute(delete(chores))

    if await database.write_long(left):
        await database.compact()
        await database.write_long(forget)
