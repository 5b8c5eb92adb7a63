"""The host is restarted: nothing that ran is there any more, no mount, no namespace, and the boot has another id.

The server lives in a mount namespace of its own, in which the boot's id is what the test says. Killing everything in it
takes all mounts and network namespaces along, as the end of a kernel does.
"""

import contextlib
import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from glob import glob
from pathlib import Path

import pytest
from acceptance.servers import eventually
from crash.durable_cases import drop, trees
from crash.instances import SETTLED_S, CrashServer, Step, after, before, calling
from node.layers_home import loop_files

from skerry import Conflict, Sandbox

# The second /proc, because the kernel lets a user namespace mount one only where it sees one that nothing covers.
_LAUNCH = 'mount --bind "$1" /proc/sys/kernel/random/boot_id && mount -t proc proc "$2" && shift 2 && exec "$@"'


class Host:
    """A server on a host that can be restarted."""

    def __init__(self, runtime: str) -> None:
        self.server = CrashServer(runtime, "reboot")
        self._boot_id = self.server.config.home / "boot_id"
        unshare = ("unshare", "--mount", "--propagation", "slave", "sh", "-c", _LAUNCH, "sh")
        self._bare_proc = self.server.config.home / "proc"
        self.server.launcher = (*unshare, str(self._boot_id), str(self._bare_proc))

    def boot(self) -> None:
        self.server.config.home.mkdir(mode=0o711, exist_ok=True)
        self._bare_proc.mkdir(exist_ok=True)
        self._boot_id.write_text(f"{uuid.uuid4()}\n")
        self.server.start()

    def power_off(self, *, cut: bool = False) -> None:
        """At once, and without a word to anybody. With `cut` the pool has what had reached its disk, and no more."""
        os.kill(self.server.pid("node"), signal.SIGSTOP)  # it must not notice the deaths of its sandboxes
        for pid in self._sandboxed():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        image = self.server.config.home / "pool.img"
        on_disk = image.with_name("pool.cut")
        if cut:
            subprocess.run(["cp", "--sparse=always", image, on_disk], check=True)
        self.server.kill("supervisor")
        eventually("nothing runs any more", lambda: not self._sandboxed() and not self.server.orphans())
        for directory in sorted(self._cgroups(), key=lambda path: len(path.parts), reverse=True):
            directory.rmdir()
        table = f"skerry_{self.server.config.instance}"
        subprocess.run(["nft", "delete", "table", "inet", table], check=True, capture_output=True)
        for entry in sorted(self.server.config.run_dir.rglob("*"), reverse=True):
            entry.rmdir() if entry.is_dir() else entry.unlink()
        if cut:
            # A file system that is still there, in whatever namespace, would be taken for the one that is mounted next.
            eventually("the pool is let go of", lambda: str(image) not in loop_files(), within_s=30)
            on_disk.replace(image)

    def _cgroups(self) -> list[Path]:
        # Version 1 has a tree for each controller, version 2 one for all; sandboxes may have directories of their own.
        top = f"skerry-{self.server.config.instance}"
        found = [glob(f"/sys/fs/cgroup/{depth}{top}/**/", recursive=True) for depth in ("", "*/", "*/*/")]  # noqa: PTH207
        return [Path(directory) for several in found for directory in several]

    def _sandboxed(self) -> set[int]:
        found: set[int] = set()
        for directory in self._cgroups():
            with contextlib.suppress(FileNotFoundError):
                found |= {int(pid) for pid in (directory / "cgroup.procs").read_text().split()}
        return found

    def files_of(self, sandbox_id: str) -> Path:
        """Where a sandbox's files lie, seen as the node sees them."""
        pool = self.server.config.pool_dir.absolute()
        return Path(f"/proc/{self.server.pid('node')}/root{pool}/sandboxes/{sandbox_id}")


@pytest.fixture
def host(runtime: str) -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip("sandboxes need root")
    host = Host(runtime)
    host.server.prepare()
    host.boot()
    with host.server.client() as client:
        for box in host.server.settled(client):
            box.destroy()
    yield host
    host.server.stop()


@pytest.mark.parametrize("runtime", ["crun", "runsc"], indirect=True)
def test_f34_a_restart_of_the_host_is_a_stop_and_the_next_use_a_resume(host: Host) -> None:
    with host.server.client() as client:
        box = client.create()
        box.files.write("kept", b"kept")
        box.commands.run("touch /root/outside")
        running = box.commands.start("echo before; sleep 600")
        eventually("it has printed", lambda: running.poll().stdout == "before\n")
        host.power_off()
        host.boot()

        eventually("it is stopped", lambda: box.refresh().status == "stopped", within_s=SETTLED_S)
        assert box.info.reason == "host_restart"
        assert box.info.archive is not None
        ended = running.wait()
        assert (ended.status, ended.reason, ended.exit_code) == ("failed", "sandbox_gone", None)
        assert ended.stdout == "before\n"
        assert box.commands.run("cat kept; ls /root").stdout == "kept"
        assert box.refresh().info.reason is None
        with client.create() as another:
            assert another.commands.run("echo works").stdout == "works\n"
        box.destroy()
        assert box.refresh().status == "destroyed"
        assert not host.files_of(box.id).exists()


def synced(box: Sandbox, name: str) -> None:
    """Write a file that says its name, as programs do that care."""
    box.commands.run(f"echo {name} | dd of={name} conv=fsync").check()


@pytest.mark.parametrize("runtime", ["crun", pytest.param("runsc", marks=pytest.mark.long)], indirect=True)
def test_f34_a_power_cut_takes_nothing_that_was_there_at_the_last_stop(host: Host) -> None:
    with host.server.client() as client:
        box, other = client.create(), client.create()
        box.commands.run("echo never synced > unsynced; seq 100000 > numbers")
        box.stop()
        synced(box, "synced")
        other.commands.run("echo never synced > unsynced")
        other.stop()
        host.power_off(cut=True)
        host.boot()
        eventually("it is stopped", lambda: box.refresh().status == "stopped", within_s=SETTLED_S)
        assert box.commands.run("cat unsynced synced; tail -n 1 numbers").stdout == "never synced\nsynced\n100000\n"
        assert other.files.read("unsynced") == b"never synced\n"


def test_f34_a_sandbox_whose_files_never_reached_the_disk_is_told_as_such(host: Host) -> None:
    with host.server.client() as client:
        box = client.create()
        host.power_off(cut=True)
        host.boot()
        eventually("it is told", lambda: box.refresh().status in ("failed", "stopped"), within_s=SETTLED_S)
        if box.status == "failed":  # else the pool had just been written out
            assert box.info.reason == "disk"
            with pytest.raises(Conflict) as lost:
                box.resume()
            assert lost.value.code == "files_lost"


USUAL = (
    ("stop", before("node", "node.trees:BtrfsTrees.flush")),
    ("restore", after("node", "node.captures:Captures.hand_over")),
)
LONG = (
    ("stop", after("node", "node.records:Records.write")),
    ("stop", after("node", "node.layers:Layers._put_away")),
    ("stop", before("node", "blobs.jobs:_answers")),
    ("stop", after("api", "providers.local:LocalProvider.archive")),
    ("restore", after("node", "node.captures:Captures.begin")),
    ("restore", after("node", "blobs.jobs:Archiver.fetch")),
    ("restore", after("node", "node.captures:Captures._finish")),
    ("restore", after("node", "node.supervisor:Supervisor._make")),
)
MOMENTS = [pytest.param(*one, id=f"{one[0]}-{one[1]}") for one in USUAL]
MOMENTS += [pytest.param(*one, id=f"{one[0]}-{one[1]}", marks=pytest.mark.long) for one in LONG]


@pytest.mark.parametrize(("verb", "step"), MOMENTS)
def test_f34_a_power_cut_in_the_middle_of_a_stop_an_archive_a_restore_loses_nothing(
    host: Host, verb: str, step: Step
) -> None:
    with host.server.only_client() as client:
        box = client.create()
        synced(box, "kept")
        act = box.stop
        if verb == "restore":
            box.stop()
            drop(host.server, box.id)
            act = box.resume
        host.server.arm(step)
        with calling(act):
            eventually(f"{step} is reached", lambda: host.server.stopped(step.part))
            host.power_off(cut=True)
        host.boot()
        host.server.settled(client)
        assert box.refresh().status == "stopped"
        assert box.commands.run("cat kept").stdout == "kept\n"
        box.stop()
        drop(host.server, box.id)
        assert box.files.read("kept") == b"kept\n"
        box.destroy()
        eventually("nothing of it is held", lambda: not trees(host.server), within_s=SETTLED_S)


@pytest.mark.parametrize("where", ["node.layers:Layers.create", "node.steps:start", "node.supervisor:Supervisor._make"])
def test_f34_a_restart_of_the_host_undoes_a_create_that_it_interrupted(host: Host, where: str) -> None:
    with host.server.only_client() as client:
        host.server.arm(after("node", where))
        with calling(client.create):
            eventually("the create is half done", lambda: host.server.stopped("node"))
            host.power_off()
        host.boot()
        (box,) = host.server.settled(client)
        assert (box.status, box.info.reason) == ("failed", "create")
        eventually("its files are gone", lambda: not host.files_of(box.id).exists(), within_s=SETTLED_S)
        with client.create() as another:
            assert another.commands.run("echo works").stdout == "works\n"
