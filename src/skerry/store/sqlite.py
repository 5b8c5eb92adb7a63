"""Runs functions over a SQLAlchemy connection against SQLite, in threads: one writes, a few read.

Each store operation is a plain function of a connection, so that a whole transaction costs one hop to a thread (with an
asynchronous driver it is one a statement, most of the price on SQLite), and the event loop never waits for a lock or a
disk that is slow to write. Only `glance`, a look-up by key of what is mostly in memory, takes no hop at all: it costs a
third of one, and in WAL mode a reader waits for nobody.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import OperationalError

from skerry.model.errors import Invalid, Unavailable

T = TypeVar("T")
_READERS = 2
_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",
    "PRAGMA busy_timeout=5000",
    "PRAGMA foreign_keys=ON",
)


def database_path(url: str) -> Path:
    """The file that a `sqlite:///…` URL (with any driver name) means.

    Raises:
        Invalid: It names none.
    """
    scheme, _, rest = url.partition(":///")
    if scheme.split("+")[0] != "sqlite" or not rest or rest == ":memory:":
        raise Invalid(f"'{url}' names no database file. Use sqlite:///<path>.", field="database_url")
    return Path(rest)


class Sqlite:
    """Owns the threads and their connections. A writer takes the lock when it begins (BEGIN IMMEDIATE)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = _Lane(_engine(path, writes=True), threads=1)
        self._reading = _Lane(_engine(path, writes=False), threads=_READERS)
        self._glancing = _Lane(_engine(path, writes=False), threads=1)

    async def open(self) -> None:
        """Make the directory and the file; raises Unavailable when that is not possible."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"The directory of the database {self._path} cannot be made: {error}.") from error
        await self._writing.start()
        await self._reading.start()

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction of its own. It commits when `work` returns, and is undone when that raises."""

        def transaction(connection: Connection) -> T:
            with connection.begin():
                return work(connection)

        return await self._writing.run(transaction)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads, beside the writer. It sees everything that was committed before the call."""
        return await self._reading.run(work)

    def glance(self, work: Callable[[Connection], T]) -> T:
        """Run `work` here and now, on the caller's thread, which is always the same. For look-ups by key alone."""
        return self._glancing.call(work)

    async def close(self) -> None:
        self._glancing.close()
        self._reading.close()
        self._writing.close()


class _Lane:
    """Threads with one long-lived connection each."""

    def __init__(self, engine: Engine, *, threads: int) -> None:
        self._engine = engine
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="skerry-db")
        self._own = threading.local()
        self._all: list[Connection] = []

    async def start(self) -> None:
        """Start all threads now: on a host that is out of processes later, the database goes on."""
        meet = threading.Barrier(self._threads)
        loop = asyncio.get_running_loop()
        await asyncio.gather(*(loop.run_in_executor(self._pool, meet.wait, 30) for _ in range(self._threads)))

    async def run(self, work: Callable[[Connection], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.call, work)

    def call(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on this thread, with its own connection."""
        try:
            connection: Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = self._engine.connect()
                self._all.append(connection)
            return work(connection)
        except OperationalError as error:
            raise Unavailable(f"The database did not do it: {error.orig}. Try again; look at its disk.") from error

    def close(self) -> None:
        # Waits for a transaction that runs: a connection must not be closed under it.
        self._pool.shutdown()
        for connection in self._all:
            connection.close()
        self._all.clear()


def _engine(path: Path, *, writes: bool) -> Engine:
    engine = create_engine(
        f"sqlite+pysqlite:///{path}", poolclass=NullPool, connect_args={"check_same_thread": False, "timeout": 5}
    )
    if not writes:
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own idea of when a transaction begins is off: it would take the lock too late.
        connection.isolation_level = None
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        if not writes:
            connection.execute("PRAGMA query_only=ON")

    event.listen(engine, "connect", prepare)
    if writes:
        event.listen(engine, "begin", _begin_immediate)
    return engine


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
