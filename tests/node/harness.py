"""Starts and kills real nodes for tests, and tells what they leave behind on the host."""

import asyncio
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from node.leaks import assert_nothing_left, held
from node.node_process import config_of

from skerry.model.command import CommandEvent, ExecSpec, Exit, Lost, Output
from skerry.model.errors import Unavailable
from skerry.model.ids import SandboxId, new_command_id, new_sandbox_id
from skerry.model.sandbox import Limits, NetworkMode, SandboxSpec
from skerry.providers.local import LocalProvider
from skerry.seams import Guest

REPOSITORY = Path(__file__).parents[2]
DEADLINE_S = 60.0


def make_root(root: Path) -> None:
    """A root file system of busybox alone."""
    for name in ("bin", "etc", "dev", "proc", "sys", "tmp", "root", "run", "workspace", ".skerry"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy("/bin/busybox", root / "bin" / "busybox")
    for applet in subprocess.run(["/bin/busybox", "--list"], capture_output=True, text=True, check=True).stdout.split():
        if applet != "busybox":
            (root / "bin" / applet).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")


@dataclass
class Node:
    """One instance: a home, and the node process on it while there is one."""

    runtime: str
    home: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="sk-", dir="/tmp")))
    process: subprocess.Popen[bytes] | None = None
    extra_env: dict[str, str] = field(default_factory=dict)
    pool_mb: int = 2048

    def __post_init__(self) -> None:
        self.home.chmod(0o711)
        (self.home / "bin").mkdir(mode=0o755, exist_ok=True)
        shutil.copy(os.environ["SBXD_BINARY"], self.home / "bin" / "sbxd")
        make_root(self.home / "tiny")
        self.provider = self.connect()

    def connect(self) -> LocalProvider:
        return LocalProvider(self.home / "run" / "node.sock")

    async def start(self) -> None:
        _leave_orphans_to_init()
        environ = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY / 'tests'}", **self.extra_env}
        main = Path(__file__).with_name("node_process.py")
        with (self.home / "node.log").open("ab") as logs:
            self.process = subprocess.Popen(  # noqa: ASYNC220 - it is waited for elsewhere
                [sys.executable, str(main), str(self.home), self.runtime, str(self.pool_mb)],
                stderr=logs,
                stdout=logs,
                env=environ,
            )
        provider = self.connect()
        await until(lambda: self._ready(provider), "the node is ready")
        await provider.close()

    async def _ready(self, provider: LocalProvider) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise AssertionError(f"the node ended: {self.log()}")
        try:
            return await provider.ready()
        except Unavailable:
            return False

    def log(self) -> str:
        return (self.home / "node.log").read_text()[-4000:]

    def kill(self, number: int = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(30)
        self.process = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def memory_mb(self) -> float:
        return sum(
            int(line.split()[1]) / 1024
            for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines()
            if line.startswith("Pss:")
        )

    async def close(self) -> None:
        """Destroy everything, end the node, and check that the host is as it was."""
        if self.process is None:
            await self.start()
        for seen in await self.provider.list():
            await self.provider.destroy(seen.id)
        for tree in await self.provider.trees():
            await self.provider.drop(tree.id)
        left = self.leaks()
        await self.provider.shutdown(stop_sandboxes=True)
        await self.provider.close()
        assert self.process is not None
        code = await asyncio.to_thread(self.process.wait, 30)
        self.process = None
        log = self.log()
        assert not left, (left, log)
        assert code == 0, log
        await assert_nothing_left(config_of(self.home, self.runtime))
        assert "Traceback" not in log, log
        shutil.rmtree(self.home)

    def leaks(self) -> list[str]:
        """What there is of sandboxes anywhere on the host."""
        now = held(config_of(self.home, self.runtime))
        everything = (*now.mounts, *now.cgroups, *now.processes, *now.runtime_records)
        found = [line for line in everything if "sbx_" in line]
        for directory in (
            "pool/sandboxes",
            "pool/captures",
            "pool/mounts",
            "node/sandboxes",
            "node/bundles",
            "run/netns",
        ):
            if (self.home / directory).is_dir():
                found += [f"{directory}/{path.name}" for path in (self.home / directory).iterdir()]
        return found


async def until(condition: Callable[[], object], what: str, deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition, sync or async."""
    end = time.monotonic() + deadline_s
    while True:
        result = condition()
        if asyncio.iscoroutine(result):
            result = await result
        if result:
            return
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}"
        await asyncio.sleep(0.02)


def spec(**changes: object) -> SandboxSpec:
    fields: dict[str, object] = {
        "id": new_sandbox_id(),
        "generation": 1,
        "template": "tiny",
        "limits": Limits(memory_mb=256, disk_mb=1024),
        "network_mode": NetworkMode.NONE,
        "hostname": "box",
        **changes,
    }
    return SandboxSpec(**fields)  # type: ignore[arg-type]


async def create(provider: LocalProvider, **changes: object) -> tuple[SandboxId, Guest]:
    wanted = spec(**changes)
    await provider.create(wanted)
    return wanted.id, provider.guest(wanted.id)


async def run(
    guest: Guest, shell: str | None = None, *argv: str, deadline_s: float = DEADLINE_S, **changes: object
) -> tuple[Exit, bytes, bytes]:
    """Run a command to its end: (exit, stdout, stderr)."""
    command = ExecSpec(id=new_command_id(), shell=shell, argv=argv, **changes)  # type: ignore[arg-type]
    async with asyncio.timeout(deadline_s):
        await guest.exec(command)
        return gathered([event async for event in guest.attach(command.id)])


def gathered(events: list[CommandEvent]) -> tuple[Exit, bytes, bytes]:
    assert not [event for event in events if isinstance(event, Lost)], events
    exit = events[-1]
    assert isinstance(exit, Exit)
    out, err = (b"".join(e.data for e in events if isinstance(e, Output) and e.channel == n) for n in (1, 2))
    return exit, out, err


def _leave_orphans_to_init() -> None:
    """Undo what a test that ran a runtime in this process has set.

    The sandboxes of a node that is killed go to init, as on a host. This process would have to reap them, and does not:
    `runsc delete` would wait for a zombie.
    """
    pr_set_child_subreaper = 36
    assert ctypes.CDLL(None).prctl(pr_set_child_subreaper, 0, 0, 0, 0) == 0
