"""The disk is full: what cannot be done is refused with the reason, what runs goes on, and room made is room used."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest
from acceptance.servers import eventually, test_home
from crash.durable_cases import drop
from crash.instances import SETTLED_S, CrashServer

from skerry import Sandbox, SkerryError, TooBusy, Unavailable

_MIB = 1 << 20
LINES = 200_000
PRINTED = sum(len(f"{n}\n") for n in range(1, LINES + 1))


class SmallDisk:
    """A server whose home is a small file system of its own. The pool's image lies elsewhere: it has its own end.

    (Beside each other a pool that frees blocks would give them to a disk that is meant to be full.)
    """

    def __init__(self) -> None:
        self.server = CrashServer("crun", "disk")
        self._home = self.server.config.home
        self._pool = test_home() / "disk-pool.img"
        self._ballast = self._home / "ballast"

    def open(self) -> None:
        self._home.mkdir(exist_ok=True)
        self.close()
        with self._pool.open("wb") as file:
            file.truncate(1024 * _MIB)
        _run("mkfs.btrfs", "-q", "-m", "single", "-d", "single", str(self._pool))
        _run("mount", "-t", "tmpfs", "-o", "size=400m,mode=0711", "small-disk", str(self._home))
        (self._home / "pool.img").touch()
        _run("mount", "--bind", str(self._pool), str(self._home / "pool.img"))
        self.server.prepare()
        self.server.start()

    def close(self) -> None:
        if os.path.ismount(self._home):
            # Lazily: whoever copied the host's mounts meanwhile, as runtimes do, keeps them busy.
            _run("umount", "--recursive", "--lazy", str(self._home))
        self._pool.unlink(missing_ok=True)

    @contextlib.contextmanager
    def full(self) -> Iterator[None]:
        """No byte more fits onto the disk meanwhile."""
        fd = os.open(self._ballast, os.O_WRONLY | os.O_CREAT)
        try:
            with pytest.raises(OSError, match="No space left"):
                while True:
                    os.write(fd, b"\0" * 4096)
            yield
        finally:
            os.close(fd)
            self._ballast.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def disk() -> Iterator[SmallDisk]:
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    disk = SmallDisk()
    try:
        disk.open()
        yield disk
    finally:
        with contextlib.suppress(AssertionError):
            disk.server.stop()
        disk.close()


@pytest.fixture
def box(disk: SmallDisk) -> Iterator[Sandbox]:
    with disk.server.client(retries=0) as client, client.create(disk_mb=64) as box:
        yield box


def test_f34_output_on_a_full_disk_is_counted_and_the_exit_is_true(disk: SmallDisk, box: Sandbox) -> None:
    running = box.commands.start(f"while [ ! -e go ]; do sleep 0.05; done; seq 1 {LINES}; touch done; exit 5")
    with disk.full():
        box.files.write("go", b"")
        eventually("it has printed all", lambda: [f for f in box.files.list(".") if f.name == "done"])
    result = running.wait()
    assert (result.status, result.exit_code) == ("completed", 5)
    assert result.output_bytes == PRINTED
    assert 0 < result.lost_bytes <= PRINTED
    assert box.commands.get(running.id).poll().lost_bytes == result.lost_bytes


def test_f34_a_full_disk_refuses_and_the_server_goes_on(disk: SmallDisk, box: Sandbox) -> None:
    pids = {part: disk.server.pid(part) for part in ("api", "node")}
    with disk.full(), disk.server.only_client() as client:
        with pytest.raises((Unavailable, TooBusy), match=r"disk|full|room|space"):
            client.create()
        with pytest.raises((Unavailable, TooBusy), match=r"disk|full|room|space"):
            box.commands.run("true")
        assert client.capabilities().runtime == "crun"
        assert [found.id for found in client.list()] == [box.id]
        assert client.get(box.id).status == "ready"
        box.files.write("small", b"in the pool there is room")
    with disk.server.client() as client:
        assert [found.id for found in disk.server.settled(client)] == [box.id]
        assert box.commands.run("cat small").stdout == "in the pool there is room"
        with client.create() as another:
            assert another.commands.run("echo works").stdout == "works\n"
    assert {part: disk.server.pid(part) for part in pids} == pids


def test_f34_a_destroy_on_a_full_disk_is_done_when_there_is_room(disk: SmallDisk) -> None:
    with disk.server.client(retries=0) as client:
        box = client.create()
        with disk.full(), contextlib.suppress(SkerryError):
            box.destroy()
        box.destroy()
        assert box.refresh().status == "destroyed"


def test_f34_an_upload_beyond_the_limit_is_refused_and_the_file_before_stays(box: Sandbox) -> None:
    box.files.write("data", b"before")
    with pytest.raises(SkerryError, match=r"space|quota|limit") as refused:
        box.files.write("data", os.urandom(_MIB) * 80)
    assert refused.value.message
    assert box.files.read("data") == b"before"
    assert [entry.name for entry in box.files.list(".")] == ["data"]
    assert box.commands.run("echo works").stdout == "works\n"


def test_f34_a_full_pool_takes_no_sandbox_and_takes_one_when_there_is_room(disk: SmallDisk) -> None:
    with disk.server.only_client() as client:
        boxes = [client.create(disk_mb=400)]
        hog = boxes[0]
        hog.commands.run("dd if=/dev/zero of=big bs=1M count=400 2>/dev/null")
        refused = None
        for _ in range(3):
            try:
                boxes.append(client.create(disk_mb=400))
                boxes[-1].commands.run("dd if=/dev/zero of=big bs=1M count=400 2>/dev/null; sync")
            except TooBusy as error:
                refused = error
                break
        assert refused is not None, "the pool takes more than it has"
        assert "disk" in refused.message or "pool" in refused.message
        for box in boxes:
            box.destroy()

        def fits() -> bool:
            try:
                client.create().destroy()
            except TooBusy:
                return False
            return True

        eventually(
            "there is room again", fits, within_s=100, every_s=0.5
        )  # btrfs gives freed space back in the background
        for box in disk.server.settled(client):
            box.destroy()


def test_f34_a_stop_on_a_full_disk_is_done_when_there_is_room(disk: SmallDisk) -> None:
    with disk.server.only_client() as client:
        box = client.create(disk_mb=64)
        box.commands.run("echo kept > kept")
        with disk.full(), contextlib.suppress(SkerryError):
            box.stop()
            # Where it could be put on record at all, the files wait on the node; a small archive may find room yet,
            # in what another file gave back.
            assert box.status in ("stopping", "stopped")
            assert box.status == "stopped" or box.info.message
        box.stop()
        eventually("it is stopped", lambda: box.refresh().status == "stopped", within_s=SETTLED_S, every_s=0.1)
        drop(disk.server, box.id)
        with disk.full(), contextlib.suppress(SkerryError):
            box.resume()
        assert box.commands.run("cat kept").stdout == "kept\n"
        box.destroy()


def test_f34_a_full_archive_directory_keeps_files_on_the_node(disk: SmallDisk) -> None:
    archive = disk.server.config.home / "archive"
    with disk.server.only_client() as client:
        box = client.create(disk_mb=128)
        box.commands.run("dd if=/dev/urandom of=large bs=1M count=64 2>/dev/null")
        before = box.commands.run("md5sum large").stdout
        archive.mkdir(mode=0o700, exist_ok=True)
        _run("mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "small-archive", str(archive))
        try:
            box.stop()
            assert box.status == "stopping"
            assert "No space left" in (box.info.message or "")
            assert box.commands.run("md5sum large").stdout == before
            box.stop()
            _run("mount", "-o", "remount,size=300m", str(archive))
            eventually("it is stopped", lambda: box.refresh().status == "stopped", within_s=60, every_s=0.2)
            drop(disk.server, box.id)
            assert box.commands.run("md5sum large").stdout == before
            box.destroy()
        finally:
            _run("umount", "--lazy", str(archive))


@pytest.mark.long
def test_f34_a_full_pool_refuses_copies_and_resumes_and_goes_on_when_there_is_room(disk: SmallDisk) -> None:
    refused = pytest.raises((TooBusy, Unavailable), match=r"pool|disk|room|space")
    with disk.server.only_client() as client:
        kept, working = client.create(disk_mb=64), client.create(disk_mb=64)
        kept.commands.run("echo kept > kept")
        working.commands.run("echo kept > kept")
        kept.stop()
        hogs: list[Sandbox] = []
        for _ in range(4):
            try:
                hogs.append(client.create(disk_mb=400))
            except TooBusy:
                break
            hogs[-1].commands.run("dd if=/dev/zero of=big bs=1M count=400 2>/dev/null; sync")
        with refused:
            kept.resume()
        with refused:
            working.snapshot()
        with refused:
            working.fork()
        disk.server.settled(client)
        assert kept.refresh().status == "stopped"
        assert working.commands.run("cat kept").stdout == "kept\n"
        working.stop()
        eventually("a stop needs no room", lambda: working.refresh().status == "stopped", within_s=SETTLED_S)
        for hog in hogs:
            hog.destroy()

        def comes_back() -> bool:
            try:
                return kept.commands.run("cat kept").stdout == "kept\n"
            except TooBusy:
                return False

        # btrfs gives freed space back in the background.
        eventually("there is room again", comes_back, within_s=100, every_s=0.5)
        assert working.commands.run("cat kept").stdout == "kept\n"
        assert not client.snapshots.list().all()
        for box in disk.server.settled(client):
            box.destroy()
