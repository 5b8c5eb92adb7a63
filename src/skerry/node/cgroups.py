"""The cgroups of sandboxes, on version 1, hybrid and version 2 hosts: where they go, what they count, how they end.

The OCI runtime makes them and sets the limits. This module chooses the place, reads and removes. Every sandbox's cgroup
is `<base>/skerry-<instance>/<sandbox id>`.
"""

import asyncio
import contextlib
import errno
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from skerry.model.errors import Refused
from skerry.model.ids import SandboxId
from skerry.model.metrics import Usage

ROOT = Path("/sys/fs/cgroup")
NEEDED = ("memory", "cpu", "pids")
_READ_BYTES = 65_536
_LEAF = "skerry-node"  # for our own processes, beside the sandboxes; the unit's DelegateSubgroup


@dataclass(frozen=True, slots=True)
class Layout:
    """How this host mounts cgroups. `version` is that of the memory controller; hybrid hosts are version 1."""

    version: int
    root: Path
    unified: bool = False  # version 1 with an (unused) version 2 tree at <root>/unified
    base: str = ""  # version 2: the cgroup under which ours is made; "" = the top

    def directories(self, name: str) -> list[Path]:
        """Every directory that the cgroup `name` may have."""
        if self.version == 2:
            return [self.root / self.base.lstrip("/") / name]
        return [tree / name for tree in sorted(self.root.iterdir()) if tree.is_dir() and not tree.is_symlink()]

    @property
    def swap_counted(self) -> bool:
        """Whether a limit on memory and swap together can be set (a kernel may be built or booted without)."""
        if self.version == 2:
            return Path("/proc/swaps").exists()
        return (self.root / "memory" / "memory.memsw.limit_in_bytes").exists()


def detect(root: Path = ROOT) -> Layout:
    """Read how cgroups are mounted. Changes nothing.

    Raises:
        Refused: No cgroup tree with the controllers for memory, cpu and processes.
    """
    if (root / "cgroup.controllers").exists():
        have = (root / "cgroup.controllers").read_text().split()
        missing = [name for name in NEEDED if name not in have]
        layout = Layout(2, root)
    else:
        missing = [name for name in NEEDED if not (root / name / "cgroup.procs").exists()]
        layout = Layout(1, root, unified=(root / "unified" / "cgroup.procs").exists())
    if missing:
        raise Refused(
            f"The cgroup controllers {', '.join(missing)} are not available under {root}, so limits cannot be enforced."
            " Boot with cgroups enabled, or give the service 'Delegate=yes'."
        )
    return layout


class Cgroups:
    """The cgroups of one instance."""

    def __init__(self, instance: str, root: Path = ROOT) -> None:
        """Finds a place where cgroups can be made, by making one.

        Raises:
            Refused: There is none.
        """
        self.name = f"skerry-{instance}"
        layout = detect(root)
        self.layout = layout if layout.version == 1 else _place(layout, self.name)
        self._tops = self.layout.directories(self.name)

    def oci_path(self, sandbox_id: SandboxId) -> str:
        """The `cgroupsPath` of an OCI configuration (cgroupfs driver)."""
        return f"{self.layout.base}/{self.name}/{sandbox_id}"

    def expect_joins(self) -> None:
        """Have the kernel prepared for processes that join a cgroup within the next 20 ms or so. Blocks 5 to 15 ms.

        The first one in a while waits for an RCU grace period, and those that follow it do not. So this process joins
        the cgroup that it is in, which changes nothing, while what joins in earnest is still being made ready.
        """
        with contextlib.suppress(OSError):  # it is then as slow as it is without
            _own_procs(self.layout).write_text(str(os.getpid()))

    def processes(self, sandbox_id: SandboxId) -> list[int]:
        """Pids on the host of all that runs in the sandbox's cgroup, and below it."""
        found: set[int] = set()
        for directory in self._directories(sandbox_id):
            for top in _with_inner(directory):
                with contextlib.suppress(OSError), open(f"{top}/cgroup.procs", "rb") as file:  # noqa: PTH123 - hot
                    found.update(map(int, file.read().split()))
        return sorted(found)

    def holds(self, pid: int, sandbox_id: SandboxId) -> bool:
        """Whether a process runs in the sandbox's cgroup: proof that its pid has not been used again for another."""
        try:
            lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            return False
        wanted = f"/{self.name}/{sandbox_id}"
        return any(line.endswith(wanted) or f"{wanted}/" in line for line in lines)

    def oom_kills(self, sandbox_id: SandboxId) -> int:
        """How often the kernel killed for the sandbox's memory limit. 0 when its cgroup is gone."""
        name = "memory.events" if self.layout.version == 2 else "memory.oom_control"
        for line in self._read(sandbox_id, "memory", name).splitlines():
            key, _, value = line.partition(" ")
            if key == "oom_kill":
                return int(value)
        return 0

    def usage(self, sandbox_id: SandboxId) -> Usage | None:
        """What the sandbox uses now; None when it is gone."""
        if not (processes := self._read(sandbox_id, "pids", "pids.current")):
            return None
        if self.layout.version == 2:
            cpu_ms = _value_of(self._read(sandbox_id, "", "cpu.stat"), "usage_usec") // 1000
            memory = int(self._read(sandbox_id, "", "memory.current") or 0)
            cache = _value_of(self._read(sandbox_id, "", "memory.stat"), "inactive_file")
        else:
            cpu_ms = int(self._read(sandbox_id, "cpuacct", "cpuacct.usage") or 0) // 1_000_000
            memory = int(self._read(sandbox_id, "memory", "memory.usage_in_bytes") or 0)
            cache = _value_of(self._read(sandbox_id, "memory", "memory.stat"), "total_inactive_file")
        cache = min(cache, memory)  # they are not read at one instant
        return Usage(cpu_ms, memory - cache, cache, int(processes))

    def sandboxes(self) -> set[SandboxId]:
        """Every sandbox that has a cgroup, alive or not."""
        return {
            SandboxId(entry.name)
            for directory in self._tops
            if directory.is_dir()
            for entry in directory.iterdir()
            if entry.is_dir()
        }

    async def kill(self, sandbox_id: SandboxId, deadline_s: float = 10.0) -> set[int]:
        """SIGKILL all that runs in the sandbox until nothing is left; the pids there were. Unknown: success.

        Raises:
            Refused: Something in it does not die.
        """
        until, seen = time.monotonic() + deadline_s, set[int]()
        while alive := self.processes(sandbox_id):
            seen.update(alive)
            if time.monotonic() > until:
                raise Refused(
                    f"Processes {alive} of sandbox {sandbox_id} do not die: they wait for the kernel (a hung disk?)."
                    " Destroying the sandbox again tries again."
                )
            self._kill_once(sandbox_id, alive)
            await asyncio.sleep(0.001)
        return seen

    def _kill_once(self, sandbox_id: SandboxId, pids: list[int]) -> None:
        if self.layout.version == 2:
            with contextlib.suppress(OSError):  # since Linux 5.14: all at once, so that no fork escapes
                (self._directories(sandbox_id)[0] / "cgroup.kill").write_text("1")
                return
        for pid in pids:
            if self.holds(pid, sandbox_id):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def remove(self, sandbox_id: SandboxId, deadline_s: float = 5.0) -> None:
        """Kill what is in the sandbox's cgroup and remove it. Unknown: success.

        Raises:
            Refused: Something in it does not die, or the kernel does not let go of it.
        """
        until = time.monotonic() + deadline_s
        await self.kill(sandbox_id)
        while not self._rmdir(sandbox_id):
            if time.monotonic() > until:
                raise Refused(f"The cgroup of sandbox {sandbox_id} cannot be removed. Destroying it again tries again.")
            await asyncio.sleep(0.002)

    def remove_parent(self) -> None:
        """Remove the instance's own cgroup, if no sandbox is left in it."""
        for directory in self._tops:
            with contextlib.suppress(OSError):
                directory.rmdir()

    def _directories(self, sandbox_id: SandboxId) -> list[Path]:
        return [directory / sandbox_id for directory in self._tops]

    def _read(self, sandbox_id: SandboxId, tree: str, name: str) -> str:
        # By descriptor and by text: before each command of gVisor's one is read, and objects cost more than the file.
        top = self.layout.base.lstrip("/") if self.layout.version == 2 else tree
        try:
            fd = os.open(f"{self.layout.root}/{top}/{self.name}/{sandbox_id}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return b"".join(iter(partial(os.read, fd, _READ_BYTES), b"")).decode()
        except OSError:
            return ""
        finally:
            os.close(fd)

    def _rmdir(self, sandbox_id: SandboxId) -> bool:
        for directory in self._directories(sandbox_id):
            for top in reversed(_with_inner(directory)):
                try:
                    os.rmdir(top)  # noqa: PTH106 - cgroupfs directories hold files that go with them
                except OSError as error:
                    if error.errno != errno.ENOENT:
                        return False
        return True


def _value_of(table: str, name: str) -> int:
    """The number beside a name in a file of `name number` lines; 0 where there is none."""
    start = f"\n{table}".find(f"\n{name} ")
    return 0 if start < 0 else int(table[start + len(name) + 1 :].split(None, 1)[0])


def _with_inner(directory: Path) -> list[str]:
    """A cgroup and all below it, outer ones first. Nearly none has any below, which its count of links tells."""
    try:
        links = directory.stat().st_nlink
    except OSError:
        return []
    # 2 = no directory in it. Only a file system that does not count them says 1.
    return [os.fspath(directory)] if links == 2 else [top for top, _, _ in os.walk(directory)]


def _place(layout: Layout, name: str) -> Layout:
    """Where on a version 2 host ours can be made: under our own cgroup if it was delegated to us, else at the top."""
    at = _own_cgroup()
    own = at.removesuffix(f"/{_LEAF}")
    # Only from a cgroup inside the delegated one, where systemd ≥ 254 starts us (DelegateSubgroup=): an older one puts
    # the service's process into the delegated cgroup itself, which the kernel refuses at the next start, since
    # sandboxes that went on have controllers on in it.
    delegated = own not in ("", at) and _is_delegated(layout.root / own.lstrip("/"))
    reasons: list[str] = []
    for base in dict.fromkeys([own, "", own] if delegated else ["", own]):
        try:
            _enable(layout.root / base.lstrip("/"), name)
        except OSError as error:
            reasons.append(f"{base or '/'}: {error.strerror}")
        else:
            return Layout(2, layout.root, base=base)
    raise Refused(
        f"No cgroup with {', '.join(NEEDED)} can be made ({'; '.join(reasons)})."
        " Run the node as a systemd service with 'Delegate=yes', or with write access to /sys/fs/cgroup."
    )


def _own_procs(layout: Layout) -> Path:
    """The file that this process is listed in, of the controller pids."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if layout.version == 2 and controllers == "":
            return layout.root / path.lstrip("/") / "cgroup.procs"
        if "pids" in controllers.split(","):
            return layout.root / "pids" / path.lstrip("/") / "cgroup.procs"
    raise FileNotFoundError("this process is in no cgroup")


def _own_cgroup() -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return line[3:].rstrip("/")
    return ""


def _is_delegated(directory: Path) -> bool:
    for attribute in ("trusted.delegate", "user.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(directory, attribute) == b"1":
                return True
    return False


def _enable(base: Path, name: str) -> None:
    """Make `base/name` with the controllers on in it. A cgroup with children that limit may hold no process itself."""
    (base / name).mkdir(exist_ok=True)
    wanted = "+" + " +".join(NEEDED)
    try:
        (base / "cgroup.subtree_control").write_text(wanted)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _move_to_leaf(base)
        (base / "cgroup.subtree_control").write_text(wanted)
    (base / name / "cgroup.subtree_control").write_text(wanted)


def _move_to_leaf(base: Path) -> None:
    leaf = base / _LEAF
    leaf.mkdir(exist_ok=True)
    for pid in (base / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(pid)
