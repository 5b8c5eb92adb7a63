"""Secrets in the database: sealed, bound to their row, and never lost over a key that is not there."""

import base64
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from sqlalchemy import create_engine

from skerry.model.account import Account
from skerry.model.errors import Unavailable
from skerry.model.lifecycle import Event
from skerry.model.request import Once
from skerry.store import open_store
from skerry.store.box import Box, make_keys, read_keys
from skerry.store.migrate import scripts
from skerry.store.store import SqlStore
from skerry.testing.store_suite import add_account, sandbox_of

SECRET = "hunter2-is-no-good-password"


def files(home: Path) -> bytes:
    """All of the database: the file, its log, its index."""
    return b"".join(path.read_bytes() for path in home.glob("a.db*"))


async def opened(home: Path) -> SqlStore:
    return await open_store(f"sqlite:///{home}/a.db")


async def one_secret(home: Path) -> None:
    """A database with one sandbox whose environment holds the secret."""
    store = await opened(home)
    account = await add_account(store)
    await add_sandbox_with(store, account, SECRET)
    await store.close()


async def add_sandbox_with(store: SqlStore, account: Account, secret: str) -> None:
    await store.add_sandbox(replace(sandbox_of(account), env={"TOKEN": secret}))


async def secret_in(home: Path) -> str:
    store = await opened(home)
    try:
        (sandbox,) = await store.list_sandboxes()
        return sandbox.env["TOKEN"]
    finally:
        await store.close()


async def test_an_environment_is_nowhere_in_the_database_in_clear(tmp_path: Path) -> None:
    await one_secret(tmp_path)
    assert SECRET.encode() not in files(tmp_path)
    assert await secret_in(tmp_path) == SECRET


async def test_the_key_is_its_owners_alone_and_stays_the_same(tmp_path: Path) -> None:
    await one_secret(tmp_path)
    file = tmp_path / "secrets.key"
    before = file.read_bytes()
    assert file.stat().st_mode & 0o777 == 0o600
    assert await secret_in(tmp_path) == SECRET
    assert file.read_bytes() == before


async def test_without_its_key_a_database_does_not_open_and_nothing_is_made_or_lost(tmp_path: Path) -> None:
    await one_secret(tmp_path)
    file = tmp_path / "secrets.key"
    kept = file.rename(tmp_path / "kept")
    with pytest.raises(Unavailable, match=r"secrets\.key is missing.*backup"):
        await opened(tmp_path)
    assert not file.exists()
    kept.rename(file)
    assert await secret_in(tmp_path) == SECRET


async def test_with_another_key_a_database_does_not_open(tmp_path: Path) -> None:
    await one_secret(tmp_path)
    file = tmp_path / "secrets.key"
    kept = file.rename(tmp_path / "kept")
    make_keys(file)
    with pytest.raises(Unavailable, match="lacks the key"):
        await opened(tmp_path)
    kept.replace(file)
    assert await secret_in(tmp_path) == SECRET


@pytest.mark.parametrize(("content", "why"), [("", "no key"), ("YWJj\n", "half of one"), ("not base64!\n", "else")])
async def test_a_key_file_that_is_broken_is_told_so(tmp_path: Path, content: str, why: str) -> None:
    await one_secret(tmp_path)
    (tmp_path / "secrets.key").write_text(content)
    with pytest.raises(Unavailable, match=why):
        await opened(tmp_path)


async def test_a_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    await one_secret(tmp_path)
    (tmp_path / "secrets.key").chmod(0o640)
    with pytest.raises(Unavailable, match="chmod 600"):
        await opened(tmp_path)


async def test_a_new_first_key_seals_everything_anew_and_the_old_one_can_go(tmp_path: Path) -> None:
    await one_secret(tmp_path)
    file = tmp_path / "secrets.key"
    make_keys(tmp_path / "new")
    new = (tmp_path / "new").read_text()
    file.write_text(new + file.read_text())
    assert await secret_in(tmp_path) == SECRET
    file.write_text(new)
    assert await secret_in(tmp_path) == SECRET


async def test_a_vaults_key_is_sealed_and_sealed_anew_like_every_secret(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    account = await add_account(store)
    vault = await store.vault(account.id)
    await store.close()
    content = files(tmp_path)
    for written in (vault.key, base64.b64encode(vault.key), vault.key.hex().encode()):
        assert written not in content
    make_keys(tmp_path / "new")
    file = tmp_path / "secrets.key"
    file.write_text((tmp_path / "new").read_text() + file.read_text())
    await (await opened(tmp_path)).close()
    file.write_text((tmp_path / "new").read_text())
    store = await opened(tmp_path)
    assert await store.vault(account.id) == vault
    await store.close()


async def test_a_sealed_value_does_not_open_in_another_row(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    account = await add_account(store)
    for secret in ("one", "two"):
        await add_sandbox_with(store, account, secret)
    with closing(sqlite3.connect(tmp_path / "a.db")) as raw, raw:
        raw.execute("UPDATE sandboxes SET env = (SELECT env FROM sandboxes ORDER BY seq LIMIT 1)")
    newer, older = await store.list_sandboxes()
    assert older.env["TOKEN"] == "one"
    with pytest.raises(Unavailable, match="damaged or changed"):
        newer.env["TOKEN"]
    # A damaged secret is in nobody's way who does not ask for it: the sandbox can still be ended.
    await store.transition(await store.transition(newer, Event.DESTROY), Event.GONE)
    await store.close()


async def test_what_a_request_is_known_by_is_sealed_too(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    account = await add_account(store)
    await store.add_sandbox(sandbox_of(account), Once("key", SECRET))
    await store.close()
    assert SECRET.encode() not in files(tmp_path)


async def test_environments_of_before_the_box_are_sealed_and_leave_no_trace(tmp_path: Path) -> None:
    _make_0001(tmp_path / "a.db", 200)
    assert files(tmp_path).count(SECRET.encode()) >= 200
    store = await opened(tmp_path)
    found = await store.list_sandboxes()
    assert [sandbox.env["TOKEN"] for sandbox in found if sandbox.state != "destroyed"] == [SECRET] * 199
    assert [dict(sandbox.env) for sandbox in found if sandbox.state == "destroyed"] == [{}]
    assert SECRET.encode() not in files(tmp_path)
    await store.close()
    assert SECRET.encode() not in files(tmp_path)


def test_a_box_shows_no_key_and_no_plain_text(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    box = Box(read_keys(tmp_path / "keys"))
    sealed = box.seal(b"plain", "here")
    assert "plain" not in sealed + repr(box)
    assert box.open(sealed, "here") == b"plain"
    assert box.seal(b"plain", "here") != sealed
    for broken in (sealed[:-5] + "AAAA=", sealed.replace("s1.", "s2."), "", "{}", sealed + "é"):
        with pytest.raises(Unavailable):
            box.open(broken, "here")
    with pytest.raises(Unavailable):
        box.open(sealed, "there")


def test_making_keys_never_replaces_a_file(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    first = (tmp_path / "keys").read_bytes()
    make_keys(tmp_path / "keys")
    assert (tmp_path / "keys").read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == ["keys"]


def _make_0001(path: Path, count: int) -> None:
    """A database of the first schema, with environments in clear."""
    engine, known = create_engine(f"sqlite:///{path}"), scripts()

    def upgrade(revision: object, _context: object) -> list[object]:
        return list(known._upgrade_revs("0001", revision))  # pyright: ignore

    with engine.begin() as connection, EnvironmentContext(Config(), known, fn=upgrade) as environment:
        environment.configure(connection=connection)
        environment.run_migrations()
    engine.dispose()
    with closing(sqlite3.connect(path)) as raw, raw:
        raw.execute("PRAGMA journal_mode=WAL")
        raw.execute("INSERT INTO accounts VALUES ('acct', 'a', 'unlimited', 'proj', 0)")
        raw.execute("INSERT INTO projects VALUES ('proj', 'acct', 'default', 0)")
        for number in range(count):
            state = "destroyed" if number == 0 else "running"
            row = (f"sbx_{number}", state, f'{{"TOKEN": "{SECRET}"}}', '{"memory_mb": 64}')
            raw.execute(
                "INSERT INTO sandboxes (id, account_id, project_id, state, generation, template, limits, timeout_s,"
                " network_mode, created_at_us, updated_at_us, env, metadata, capabilities, detail) VALUES"
                " (?1, 'acct', 'proj', ?2, 1, 'python', ?4, 1, 'none', 0, 0, ?3, '{}', '[]', '')",
                row,
            )
    raw.close()
