"""What is particular to the SQLite store: migrations, events, durability, errors."""

import asyncio
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from sqlalchemy import create_engine, inspect
from sqlalchemy.exc import IntegrityError

from skerry.model.errors import Conflict, Invalid, Unavailable
from skerry.model.ids import CommandId, SandboxId
from skerry.model.lifecycle import Event, State
from skerry.store import open_store
from skerry.store.migrate import scripts
from skerry.store.tables import metadata
from skerry.testing.store_suite import PLACEMENT, add_account, add_running, add_sandbox, command_of


def rows(path: Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


async def test_migrations_make_exactly_the_tables_that_the_code_uses(tmp_path: Path) -> None:
    await (await open_store(f"sqlite:///{tmp_path}/a.db")).close()
    engine = create_engine(f"sqlite:///{tmp_path}/a.db")
    found = inspect(engine)
    assert set(found.get_table_names()) == {*metadata.tables, "alembic_version"}
    for name, table in metadata.tables.items():
        assert [c["name"] for c in found.get_columns(name)] == [c.name for c in table.columns]
        assert [c["nullable"] for c in found.get_columns(name)] == [bool(c.nullable) for c in table.columns]
    engine.dispose()


async def test_opening_again_keeps_the_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    store = await open_store(url)
    sandbox = await add_sandbox(store, await add_account(store))
    await store.close()
    store = await open_store(url)
    assert await store.get_sandbox(sandbox.id) == sandbox
    await store.close()


def old_database(path: Path, newest: str) -> None:
    """A database as a version left it that knew the migrations before `newest`."""
    known = scripts()
    before = known.get_revision(newest).down_revision
    engine = create_engine(f"sqlite:///{path}")
    with (
        engine.begin() as connection,
        EnvironmentContext(
            Config(), known, fn=lambda revision, _: known._upgrade_revs(before, revision)
        ) as environment,
    ):
        environment.configure(connection=connection, transactional_ddl=False)
        environment.run_migrations()
    engine.dispose()


async def test_sandboxes_from_before_stopping_come_back_and_are_never_reclaimed(tmp_path: Path) -> None:
    old_database(tmp_path / "a.db", "0005")
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute(
            "INSERT INTO sandboxes (id, account_id, project_id, state, generation, template, limits, timeout_s, "
            "network_mode, created_at_us, updated_at_us, env, metadata, capabilities, detail) VALUES "
            "('sbx_1', 'acct_1', 'proj_1', 'running', 1, 'blank', '{}', 7, 'none', 0, 0, '{}', '{}', '[]', '')"
        )
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    sandbox = await store.get_sandbox(SandboxId("sbx_1"))
    assert (sandbox.idle_timeout_s, sandbox.archive, sandbox.active_at, sandbox.source) == (0, None, None, None)
    assert list(await store.due_startups()) == []
    await store.close()


async def test_commands_from_before_terminals_come_back_as_they_were(tmp_path: Path) -> None:
    old_database(tmp_path / "a.db", "0004")
    with sqlite3.connect(tmp_path / "a.db") as connection:
        connection.execute(
            "INSERT INTO commands (id, sandbox_id, account_id, command, status, working_directory, timeout_s, "
            "started_at_us) VALUES ('cmd_1', 'sbx_1', 'acct_1', 'true', 'running', '/workspace', 7, 0)"
        )
    connection.close()
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    command = await store.get_command(CommandId("cmd_1"))
    assert (command.timeout_s, command.takes_input, command.terminal, command.name) == (7, False, None, None)
    assert await store.busy_sandboxes([command.sandbox_id]) == {command.sandbox_id}
    await store.close()


async def test_many_may_open_a_new_database_at_once(tmp_path: Path) -> None:
    stores = await asyncio.gather(*(open_store(f"sqlite:///{tmp_path}/a.db") for _ in range(4)))
    for store in stores:
        await store.ping()
        await store.close()


async def test_a_database_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    await (await open_store(f"sqlite:///{tmp_path}/a.db")).close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection, connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(Unavailable, match="newer version"):
        await open_store(f"sqlite:///{tmp_path}/a.db")


@pytest.mark.parametrize("url", ["postgresql://x/y", "sqlite://", "sqlite:///:memory:", "nonsense"])
async def test_a_url_that_names_no_usable_database_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        await open_store(url)


async def test_a_database_that_cannot_be_opened_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Unavailable):
        await open_store(f"sqlite:///{tmp_path}/file/a.db")


async def test_each_move_leaves_an_event_and_a_refused_one_leaves_none(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    sandbox = await add_sandbox(store, await add_account(store))
    running = await store.transition(sandbox, Event.CREATED, placement=PLACEMENT)
    with pytest.raises(Conflict):
        await store.transition(sandbox, Event.DESTROY)
    await store.transition(running, Event.DESTROY)
    await store.close()
    found = rows(tmp_path / "a.db", "SELECT event, from_state, to_state FROM sandbox_events ORDER BY seq")
    assert found == [
        ("add", None, "creating"),
        ("created", "creating", "running"),
        ("destroy", "running", "destroying"),
    ]


async def test_what_was_answered_survives_a_kill_9(tmp_path: Path) -> None:
    program = (
        "import asyncio, os, signal\n"
        "from skerry.store import open_store\n"
        "from skerry.testing.store_suite import add_account, add_sandbox\n"
        "async def main():\n"
        f"    store = await open_store('sqlite:///{tmp_path}/a.db')\n"
        "    await add_sandbox(store, await add_account(store))\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await asyncio.wait_for(process.wait(), 30) == -9
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    assert [sandbox.state for sandbox in await store.list_sandboxes()] == [State.CREATING]
    await store.close()


async def test_running_commands_are_found_through_their_index(tmp_path: Path) -> None:
    await (await open_store(f"sqlite:///{tmp_path}/a.db")).close()
    query = (
        "EXPLAIN QUERY PLAN SELECT DISTINCT sandbox_id FROM commands WHERE status = 'running' AND sandbox_id IN ('a')"
    )
    assert "commands_running" in str(rows(tmp_path / "a.db", query))


async def test_a_write_that_finds_the_database_locked_waits_beside_the_loop(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    account = await add_account(store)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writing = asyncio.create_task(add_sandbox(store, account))
    for _ in range(20):  # while it waits, everything else goes on
        await asyncio.sleep(0.005)
        assert await store.list_sandboxes() == []
    other.execute("COMMIT")
    other.close()
    sandbox = await asyncio.wait_for(writing, 10)
    assert await store.get_sandbox(sandbox.id) == sandbox
    await store.close()


async def test_an_operation_that_fails_leaves_the_next_one_alone(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    account = await add_account(store)
    sandbox = await add_sandbox(store, account)
    with pytest.raises(IntegrityError):
        await store.add_sandbox(sandbox)
    other = await add_sandbox(store, account)
    assert {found.id for found in await store.list_sandboxes()} == {sandbox.id, other.id}
    await store.close()


async def test_the_log_is_folded_back_while_commands_come_and_go(tmp_path: Path) -> None:
    store = await open_store(f"sqlite:///{tmp_path}/a.db")
    sandbox = await add_running(store, await add_account(store))
    for _ in range(2000):
        await store.add_command(command_of(sandbox))
    assert len(await store.list_commands(sandbox_id=sandbox.id)) == 2000
    assert (tmp_path / "a.db-wal").stat().st_size < 10 << 20  # all of it is 40 MB
    await store.close()
