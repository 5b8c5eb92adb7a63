"""Brings a database to the schema of this version, with alembic, inside the transaction that it is handed."""

from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from skerry.model.errors import Unavailable

_SCRIPTS = Path(__file__).with_name("migrations")


def scripts() -> ScriptDirectory:
    """The migrations that this version knows."""
    settings = Config()
    settings.set_main_option("script_location", str(_SCRIPTS).replace("%", "%%"))
    return ScriptDirectory.from_config(settings)


def migrate(connection: Connection) -> None:
    """Apply what is missing, all or nothing; up to date: nothing. The caller holds the lock, so never twice at once.

    Raises:
        Unavailable: The database is of a newer version.
    """
    known = scripts()
    present = MigrationContext.configure(connection).get_current_heads()
    if any(revision not in {script.revision for script in known.walk_revisions()} for revision in present):
        raise Unavailable(
            f"The database is of a newer version of Skerry (schema {', '.join(present)}). Upgrade Skerry."
        )

    def upgrade(revision: Any, _context: MigrationContext) -> list[object]:
        return list(known._upgrade_revs("head", revision))  # pyright: ignore[reportPrivateUsage]

    with EnvironmentContext(Config(), known, fn=upgrade) as environment:
        environment.configure(connection=connection, transactional_ddl=False)
        environment.run_migrations()
