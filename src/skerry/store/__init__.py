"""The records: accounts, sandboxes, commands, and every move they made. Knows no HTTP and decides nothing."""

from skerry.clock import SystemClock
from skerry.model.errors import Invalid
from skerry.seams import Clock
from skerry.store.migrate import migrate
from skerry.store.sqlite import Sqlite, database_path
from skerry.store.store import SqlStore

__all__ = ["SqlStore", "open_store"]


async def open_store(url: str, clock: Clock | None = None) -> SqlStore:
    """Open the database, bring its schema up to date and return the store. `sqlite:///<absolute path>` for now.

    Raises:
        Invalid: The URL names no database that this version can use.
        Unavailable: The database cannot be opened, or was made by a newer version.
    """
    if not url.startswith("sqlite"):
        raise Invalid(f"Database '{url.split(':')[0]}' is not supported. Use sqlite:///<path>.", field="database_url")
    database = Sqlite(database_path(url))
    try:
        await database.open()
        await database.write_long(migrate)
    except BaseException:
        await database.close()
        raise
    return SqlStore(database, clock or SystemClock())
