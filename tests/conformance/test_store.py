"""Every store keeps the same contract. A new one is one more way to open one."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skerry.seams import Store
from skerry.store import open_store
from skerry.testing import store_suite
from skerry.testing.memory_store import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Store]:
    opened: Store = MemoryStore()
    if request.param == "sqlite":
        opened = await open_store(f"sqlite:///{tmp_path}/new/skerry.db")
    yield opened
    await opened.close()


class TestAccounts(store_suite.AccountsSuite): ...


class TestCommands(store_suite.CommandsSuite): ...


class TestLists(store_suite.ListsSuite): ...


class TestRequests(store_suite.RequestsSuite): ...


class TestSandboxes(store_suite.SandboxesSuite): ...


class TestShells(store_suite.ShellsSuite): ...


class TestSnapshots(store_suite.SnapshotsSuite): ...


class TestStartups(store_suite.StartupsSuite): ...


def test_no_suite_is_left_out() -> None:
    tested = {base for each in list(globals().values()) if isinstance(each, type) for base in each.__bases__}
    assert set(store_suite.SUITES) <= tested
