"""Runs functions over a SQLAlchemy connection against SQLite: short ones where they are called, long ones in threads.

Each store operation is a plain function of a connection. What touches a few rows by their keys takes less time than a
hop to a thread and back, so it is done on the event loop, as long as that waits for nothing:
- a look (`glance`) waits for nobody in WAL mode;
- a writer (`write`) that finds another one at work does not wait, it goes to the thread for that;
- a commit only writes to the log, which is the page cache. Syncing to the disk is what folding the log back into the
  file costs, and that is a thread's, which writes alone meanwhile.
Lists and migrations are a thread's from the start.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog
from sqlalchemy import Connection, Engine, NullPool, create_engine, event
from sqlalchemy.exc import OperationalError

from skerry.model.errors import Invalid, Unavailable
from skerry.store.prepared import driver

T = TypeVar("T")
_READERS = 2
_PATIENCE_MS = 5000  # for another writer's lock, in a thread
_PRAGMAS = ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=NORMAL", "PRAGMA foreign_keys=ON")
_FOLD_EVERY = 250  # short writes; a log of one to four megabytes
_log = structlog.get_logger()


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
    """Owns the threads and all connections. A writer takes the lock when it begins (BEGIN IMMEDIATE)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._writing = _Lane(_engine(path, writes=True), threads=1)
        self._reading = _Lane(_engine(path, writes=False), threads=_READERS)
        self._jotting = _Lane(_engine(path, writes=True, waits=False), threads=1)
        self._unfolded = 0  # short writes since the log was last folded back
        self._folding = False

    async def open(self) -> None:
        """Make the directory and the file; raises Unavailable when that is not possible."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise Unavailable(f"The directory of the database {self._path} cannot be made: {error}.") from error
        await self._writing.start()
        await self._reading.start()

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, a few rows by their keys, in a transaction of its own, here and now if nothing is in the way.

        It commits when `work` returns, and is undone when that raises. Always called on the same thread.
        """
        if not self._folding:
            try:
                result = self._jotting.call(lambda connection: _jot(connection, work))
            except _Locked:
                pass  # another writer: the thread waits for it
            else:
                self._unfolded += 1
                if self._unfolded >= _FOLD_EVERY:
                    self._fold()
                return result
        return await self.write_long(work)

    async def write_long(self, work: Callable[[Connection], T]) -> T:
        """As `write`, in a thread: for work that may take its time, or wait."""

        def transaction(connection: Connection) -> T:
            with connection.begin():
                return work(connection)

        return await self._writing.run(transaction)

    def _fold(self) -> None:
        """Have the log folded back. Until that is done, all writes line up in the thread behind it."""
        self._folding = True
        self._writing.submit(_fold_log).add_done_callback(self._folded)

    def _folded(self, done: asyncio.Future[None]) -> None:
        self._folding, self._unfolded = False, 0
        if not done.cancelled() and (error := done.exception()) is not None:
            _log.error("the log of the database could not be folded back; it is tried again", error=str(error))

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run `work`, which only reads, beside the writer. It sees everything that was committed before the call."""
        return await self._reading.run(work)

    async def compact(self) -> None:
        """Write the file anew, without what was deleted from it. For the start, while nothing else is at work."""
        await self._writing.submit(_write_anew)

    def glance(self, work: Callable[[Connection], T]) -> T:
        """Run `work` here and now, on the caller's thread, which is always the same. For look-ups by key alone.

        On the connection that the short writes have: to another one each write would make its cached pages stale.
        """
        return self._jotting.call(work)

    async def close(self) -> None:
        self._jotting.close()
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
        return await self.submit(work)

    def submit(self, work: Callable[[Connection], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._pool, self.call, work)

    def call(self, work: Callable[[Connection], T]) -> T:
        """Run `work` on this thread, with its own connection."""
        try:
            connection: Connection | None = getattr(self._own, "connection", None)
            if connection is None:
                connection = self._own.connection = self._engine.connect()
                self._all.append(connection)
            return work(connection)
        except (OperationalError, sqlite3.OperationalError) as error:
            why = error.orig if isinstance(error, OperationalError) else error
            raise Unavailable(f"The database did not do it: {why}. Try again; look at its disk.") from error

    def close(self) -> None:
        # Waits for a transaction that runs: a connection must not be closed under it.
        self._pool.shutdown()
        for connection in self._all:
            connection.close()
        self._all.clear()


class _Locked(Exception):
    """Another writer is at work."""


def _jot(connection: Connection, work: Callable[[Connection], T]) -> T:
    # Not `connection.begin()`: SQLAlchemy's own bookkeeping of a transaction costs more than the transaction.
    raw = driver(connection)
    try:
        raw.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise _Locked from error
        raise
    try:
        result = work(connection)
        raw.execute("COMMIT")
    except BaseException:
        if raw.in_transaction:  # a full disk may have undone it already
            raw.execute("ROLLBACK")
        raise
    return result


def _fold_log(connection: Connection) -> None:
    raw = driver(connection)
    raw.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
    # Whoever first writes to a log that was folded back begins it anew and syncs that: a write of our own, of nothing.
    raw.execute("PRAGMA user_version=0")


def _write_anew(connection: Connection) -> None:
    raw = driver(connection)
    raw.execute("VACUUM")
    raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _engine(path: Path, *, writes: bool, waits: bool = True) -> Engine:
    engine = create_engine(
        f"sqlite+pysqlite:///{path}",
        poolclass=NullPool,
        connect_args={"check_same_thread": False, "timeout": 5},
        hide_parameters=True,  # an error's text ends in the log
    )
    if not writes or not waits:
        engine = engine.execution_options(isolation_level="AUTOCOMMIT")  # no transactions of SQLAlchemy's

    def prepare(connection: sqlite3.Connection, _record: object) -> None:
        # The driver's own idea of when a transaction begins is off: it would take the lock too late.
        connection.isolation_level = None
        for pragma in _PRAGMAS:
            connection.execute(pragma)
        connection.execute(f"PRAGMA busy_timeout={_PATIENCE_MS if waits else 0}")
        if not waits:
            connection.execute("PRAGMA wal_autocheckpoint=0")
        elif writes:  # what migrations and sealing replace is overwritten in the file, not only let go of
            connection.execute("PRAGMA secure_delete=ON")
        if not writes:
            connection.execute("PRAGMA query_only=ON")

    event.listen(engine, "connect", prepare)
    if writes and waits:
        event.listen(engine, "begin", _begin_immediate)
    return engine


def _begin_immediate(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")
