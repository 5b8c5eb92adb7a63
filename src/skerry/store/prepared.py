"""Statements on the path of every command, compiled once to SQL text and run through SQLite's driver itself.

They are written with SQLAlchemy like all others. Its execution costs several times what SQLite takes for such a
statement, and here there is nothing for it to do: parameters and columns are text and integers, which need no
conversion. For rows found by their key alone; everything else goes through `Connection.execute`.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from sqlalchemy.sql import ClauseElement

_DIALECT = SQLiteDialect_pysqlite(paramstyle="named")


class Prepared:
    """One statement. `columns` names the columns that an INSERT is given."""

    def __init__(self, statement: ClauseElement, columns: Sequence[str] | None = None) -> None:
        keys = None if columns is None else list(columns)
        compiled = statement.compile(dialect=_DIALECT, column_keys=keys)  # pyright: ignore[reportArgumentType]
        self._sql = str(compiled)
        self._fixed = {name: value for name, value in (compiled.params or {}).items() if value is not None}

    def run(self, connection: Connection, parameters: Mapping[str, object]) -> tuple[Any, ...] | None:
        """The first row, or None. Part of whatever transaction the connection is in."""
        cursor = driver(connection).execute(self._sql, {**self._fixed, **parameters})
        row: tuple[Any, ...] | None = cursor.fetchone() if cursor.description else None
        cursor.close()  # a statement that is not at its end would keep the transaction open
        return row


def driver(connection: Connection) -> sqlite3.Connection:
    """The driver's connection under SQLAlchemy's."""
    return cast(sqlite3.Connection, connection.connection.dbapi_connection)
