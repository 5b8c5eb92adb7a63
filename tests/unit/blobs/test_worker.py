"""The worker process: what it is given and gives up, what it tells, and that it never outlives who waits for it."""
# ruff: noqa: ASYNC110, ASYNC221, ASYNC240 - nothing else runs in the loop of these tests

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from unit.blobs.trees import assert_same

from skerry.blobs.jobs import Archiver
from skerry.blobs.store import Place
from skerry.model.capture import Archive, Moved, Vault
from skerry.model.errors import Invalid, NotFound, Refused, TooBusy, Unavailable
from skerry.model.ids import new_archive_id, new_vault_id

SECRET = "a-secret-that-nobody-else-may-see"


@pytest.fixture
def vault() -> Vault:
    return Vault(new_vault_id(), os.urandom(32))


@pytest.fixture
def archiver(tmp_path: Path) -> Archiver:
    return Archiver(Place(f"file://{tmp_path}/store"), tmp_path / "cache")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir()
    for i in range(30):
        (tree / f"file{i}").write_bytes(os.urandom(50_000))
    return tree


@pytest.fixture
def silent_store(tmp_path: Path) -> Iterator[Place]:
    """An S3 server that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Place("s3://bucket", f"http://127.0.0.1:{server.getsockname()[1]}", "r", "an-access-key", SECRET)


async def last(moves: AsyncIterator[Moved]) -> Moved:
    async with asyncio.timeout(60):
        items = [one async for one in moves]
    return items[-1]


async def archived(archiver: Archiver, tree: Path, vault: Vault) -> Archive:
    made = (await last(archiver.archive(tree, vault, captured_at=datetime.now(UTC), cache_name="sbx_1"))).archive
    assert made is not None
    return made


def workers() -> list[int]:
    """The workers that are children of this process, zombies too."""
    found: list[int] = []
    for directory in Path("/proc").iterdir():
        try:
            if directory.name.isdigit() and f"\nPPid:\t{os.getpid()}\n" in (directory / "status").read_text():
                line = (directory / "cmdline").read_bytes()
                if not line or b"skerry.blobs.worker" in line:
                    found.append(int(directory.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


@asynccontextmanager
async def a_job(archiver: Archiver, tree: Path, vault: Vault) -> AsyncIterator[asyncio.Task[Moved]]:
    """One that is running, and is cancelled at the end."""
    task = asyncio.create_task(last(archiver.archive(tree, vault, captured_at=datetime.now(UTC), cache_name="sbx_1")))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_tree_goes_and_comes_back(archiver: Archiver, tree: Path, vault: Vault, tmp_path: Path) -> None:
    archive = await archived(archiver, tree, vault)
    assert (archive.size_bytes, archive.entries) == (1_500_000, 30)
    back = tmp_path / "back"
    back.mkdir()
    moved = await last(archiver.fetch(back, archive, vault, cache_name="sbx_2"))
    assert (moved.done_bytes, moved.total_bytes, moved.archive) == (1_500_000, 1_500_000, None)
    assert moved.sent_bytes > 1_400_000
    assert_same(tree, back)
    assert workers() == []


async def test_names_are_bytes_whatever_the_locale(
    archiver: Archiver, tree: Path, vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "C")
    (tree / "\udcff\udc80ä").write_text("x")
    back = tmp_path / "back"
    back.mkdir()
    await last(archiver.fetch(back, await archived(archiver, tree, vault), vault, cache_name="sbx_2"))
    assert_same(tree, back)


async def test_a_sweep_through_a_worker(archiver: Archiver, tree: Path, vault: Vault) -> None:
    archive = await archived(archiver, tree, vault)
    assert (await archiver.sweep(vault, [archive.id], older_than_s=0)).freed_objects == 0
    assert (await archiver.sweep(vault, [], older_than_s=3600)).freed_objects == 0
    assert (await archiver.sweep(vault, [], older_than_s=0, dry=True)).freed_objects == 3
    assert (await archiver.sweep(vault, [], older_than_s=0)).freed_bytes == archive.stored_bytes


async def test_what_is_forgotten_is_read_again(archiver: Archiver, tree: Path, vault: Vault, tmp_path: Path) -> None:
    await archived(archiver, tree, vault)
    assert (tmp_path / "cache/stat/sbx_1").exists()
    await archiver.forget("sbx_1")
    await archiver.forget("sbx_1")
    assert not (tmp_path / "cache/stat/sbx_1").exists()


@pytest.mark.parametrize("name", ["", "../x", ".x", "a/b", "x" * 101, "a\0"])
async def test_a_cache_has_a_plain_name(archiver: Archiver, tree: Path, vault: Vault, name: str) -> None:
    with pytest.raises(Invalid):
        await archiver.forget(name)
    with pytest.raises(Invalid):
        await last(archiver.archive(tree, vault, captured_at=datetime.now(UTC), cache_name=name))


async def test_errors_are_of_their_kind(archiver: Archiver, tree: Path, vault: Vault, tmp_path: Path) -> None:
    back = tmp_path / "back"
    back.mkdir()
    missing = Archive(new_archive_id(), 1, 1, 1, 0)
    with pytest.raises(NotFound) as caught:
        await last(archiver.fetch(back, missing, vault, cache_name="sbx_2"))
    assert caught.value.code == "archive_missing"
    archive = await archived(archiver, tree, vault)
    with pytest.raises(Refused) as refused:
        await last(archiver.fetch(back, archive, Vault(vault.id, os.urandom(32)), cache_name="sbx_2"))
    assert refused.value.code == "archive_damaged"
    with pytest.raises(Unavailable, match="No such file"):
        await archived(archiver, tmp_path / "none", vault)
    with pytest.raises(Invalid, match="is not empty"):
        await last(archiver.fetch(tree, archive, vault, cache_name="sbx_2"))


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
async def test_no_room_for_a_fetch_is_told_as_such(
    archiver: Archiver, tree: Path, vault: Vault, tmp_path: Path
) -> None:
    archive = await archived(archiver, tree, vault)
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=500k", "none", small]).returncode != 0:
        pytest.skip("cannot mount here")
    try:
        with pytest.raises(TooBusy, match="no room"):
            await last(archiver.fetch(small, archive, vault, cache_name="sbx_2"))
    finally:
        subprocess.run(["umount", small], check=True)


async def test_a_store_that_cannot_be_reached_is_unavailable(tree: Path, vault: Vault, tmp_path: Path) -> None:
    place = Place("s3://bucket", "http://127.0.0.1:9", "r", "an-access-key", SECRET)
    with pytest.raises(Unavailable) as caught:
        await archived(Archiver(place, tmp_path / "cache"), tree, vault)
    assert SECRET not in caught.value.message


async def test_a_cancelled_job_leaves_no_process(silent_store: Place, tree: Path, vault: Vault, tmp_path: Path) -> None:
    async with a_job(Archiver(silent_store, tmp_path / "cache"), tree, vault) as task:
        await until(lambda: len(workers()) == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert workers() == []


async def test_a_job_that_nobody_goes_on_with_leaves_no_process(
    archiver: Archiver, tree: Path, vault: Vault, tmp_path: Path
) -> None:
    (tree / "large").write_bytes(os.urandom(60_000_000))
    moves = archiver.archive(tree, vault, captured_at=datetime.now(UTC), cache_name="sbx_1")
    async with aclosing(moves):
        await anext(moves)
    assert workers() == []
    assert list((tmp_path / "cache/stat").iterdir()) == []
    await archiver.sweep(vault, [], older_than_s=0)  # and the vault is free


async def test_a_worker_that_is_killed_is_told_as_unavailable(
    silent_store: Place, tree: Path, vault: Vault, tmp_path: Path
) -> None:
    async with a_job(Archiver(silent_store, tmp_path / "cache"), tree, vault) as task:
        await until(lambda: len(workers()) == 1)
        os.kill(workers()[0], signal.SIGKILL)
        with pytest.raises(Unavailable, match="died"):
            await task


async def test_nobody_sees_the_secrets_of_a_worker(
    silent_store: Place, tree: Path, vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKERRY_ARCHIVE_SECRET_KEY", SECRET)
    async with a_job(Archiver(silent_store, tmp_path / "cache"), tree, vault):
        await until(lambda: len(workers()) == 1)
        pid = workers()[0]
        await until(lambda: b"skerry.blobs.worker" in Path(f"/proc/{pid}/cmdline").read_bytes())
        seen = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
        assert SECRET.encode() not in seen
        assert vault.key.hex().encode() not in seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has something to give up")
async def test_a_worker_gives_up_what_it_does_not_need(
    silent_store: Place, tree: Path, vault: Vault, tmp_path: Path
) -> None:
    async with a_job(Archiver(silent_store, tmp_path / "cache"), tree, vault):
        await until(lambda: len(workers()) == 1)
        status = Path(f"/proc/{workers()[0]}/status")
        # CAP_DAC_READ_SEARCH and nothing else, in no set.
        await until(lambda: "CapEff:\t0000000000000004\n" in status.read_text())
        told = status.read_text()
        for line in ("CapPrm:\t0000000000000004", "CapBnd:\t0000000000000004", "CapAmb:\t0000000000000000"):
            assert line in told
        assert "NoNewPrivs:\t1" in told
        assert os.sched_getscheduler(workers()[0]) == os.SCHED_BATCH
        assert os.getpriority(os.PRIO_PROCESS, workers()[0]) >= 10


async def test_a_worker_dies_with_the_node(silent_store: Place, tree: Path, vault: Vault, tmp_path: Path) -> None:
    program = f"""
import asyncio
from datetime import datetime, UTC
from pathlib import Path
from skerry.blobs.jobs import Archiver
from skerry.blobs.store import Place
from skerry.model.capture import Vault
async def main():
    archiver = Archiver(Place({silent_store.url!r}, {silent_store.endpoint!r}, "r", "k", "s"), Path({str(tmp_path)!r}))
    async for _ in archiver.archive(Path({str(tree)!r}), Vault({vault.id!r}, bytes(32)),
                                    captured_at=datetime.now(UTC), cache_name="a"):
        pass
asyncio.run(main())
"""
    node = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    children = Path(f"/proc/{node.pid}/task/{node.pid}/children")
    try:
        await until(lambda: bool(children.read_text().split()))
        worker = int(children.read_text().split()[0])
        await until(lambda: "SCHED" in _policy(worker))
    finally:
        node.kill()
        await node.wait()
    await until(
        lambda: not Path(f"/proc/{worker}/cmdline").exists() or not Path(f"/proc/{worker}/cmdline").read_bytes()
    )


def _policy(pid: int) -> str:
    """Says SCHED once the worker has set itself up, which it does after binding its life to its parent's."""
    return "SCHED" if os.sched_getscheduler(pid) == os.SCHED_BATCH else ""


async def test_so_many_workers_at_once_and_no_more(
    silent_store: Place, tree: Path, vault: Vault, tmp_path: Path
) -> None:
    archiver = Archiver(silent_store, tmp_path / "cache", at_once=2)
    async with (
        a_job(archiver, tree, vault) as first,
        a_job(archiver, tree, vault),
        a_job(archiver, tree, vault) as third,
    ):
        await until(lambda: len(workers()) == 2)
        await asyncio.sleep(0)
        assert not third.done()
        before = set(workers())
        first.cancel()
        await until(lambda: len(set(workers()) - before) == 1)
        assert len(workers()) == 2


async def test_a_sweep_and_archives_of_its_vault_wait_for_each_other(
    silent_store: Place, tree: Path, vault: Vault, tmp_path: Path
) -> None:
    archiver = Archiver(silent_store, tmp_path / "cache", at_once=4)
    other = Vault(new_vault_id(), os.urandom(32))
    async with a_job(archiver, tree, vault) as archive:
        await until(lambda: len(workers()) == 1)
        sweep = asyncio.create_task(archiver.sweep(vault, [], older_than_s=0))
        elsewhere = asyncio.create_task(archiver.sweep(other, [], older_than_s=0))
        await until(lambda: len(workers()) == 2)  # the other vault's alone
        archive.cancel()
        await asyncio.gather(archive, return_exceptions=True)
        await until(lambda: len(workers()) == 2)  # and now this one's
        async with a_job(archiver, tree, vault):
            assert len(workers()) == 2
            sweep.cancel()
            await asyncio.gather(sweep, return_exceptions=True)
            await until(lambda: len(workers()) == 2)
        elsewhere.cancel()
        await asyncio.gather(elsewhere, return_exceptions=True)
    assert workers() == []


async def test_a_vault_is_named_by_its_id(archiver: Archiver, tree: Path) -> None:
    with pytest.raises(Invalid):
        await archived(archiver, tree, Vault("../other", bytes(32)))  # type: ignore[arg-type]
