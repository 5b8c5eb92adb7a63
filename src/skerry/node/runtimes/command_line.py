"""The `Runtime` seam over any OCI command line. What tells one runtime from another is a `Driver`, a row of data.

State lives under `<home>/node/rt/<boot>/<runtime>`: the runtime's own records and a pid file per sandbox. A path that
carries the boot's id makes what a reboot left behind unreachable, so no stale pid is ever trusted; a pid counts only
while its process is in the sandbox's cgroup, so no reused one is either.
"""

import asyncio
import os
import shutil
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from skerry.config import Config
from skerry.model.bundle import Bundle
from skerry.model.capability import Probe
from skerry.model.errors import Conflict, DeadlineExceeded, Refused, SandboxGone, SkerryError, Unavailable
from skerry.model.ids import SandboxId, is_id
from skerry.model.lifecycle import Cause
from skerry.model.metrics import Usage
from skerry.node import namespaces, oci, processes
from skerry.node.cgroups import Cgroups, Layout
from skerry.node.runtimes import last_words
from skerry.node.runtimes.boot_probe import boot_probe

START_DEADLINE_S = 30.0
DELETE_DEADLINE_S = 20.0
BRIDGE_DEADLINE_S = 15.0
WAKE_DEADLINE_S = 5.0
VERSION_DEADLINE_S = 10.0


def _nothing(_bundle: Bundle) -> None:
    """A runtime that needs no preparation of the root."""


def open_low_ports(bundle: Bundle) -> None:
    """Let a sandbox with a user namespace listen below port 1024.

    Its own capability to do so does not count in a network namespace that the host's user namespace owns, as ours.
    """
    namespaces.enter_netns(bundle.netns)
    Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")


@dataclass(frozen=True, slots=True)
class Driver:
    """What is peculiar to one runtime."""

    name: str
    shares_kernel: bool
    package: str  # Debian's package, for the remedy of a missing binary
    flags: tuple[str, ...]
    enter: Callable[[Layout], None]  # puts the calling thread into the mount namespace that the runtime needs
    refuses_version: Callable[[str], str] = lambda _version: ""  # why a version will not do, or ""
    prepare: Callable[[Bundle], None] = _nothing  # what must be so in the root before a start
    counts_own_threads: bool = False
    descriptors: int = 0  # how large a table of descriptors its processes start with; 0: as the kernel makes it


class CommandLine:
    """One runtime of one instance. Its processes become children of this one: call it from a single event loop."""

    def __init__(self, driver: Driver, config: Config) -> None:
        self.name = driver.name
        self.shares_kernel = driver.shares_kernel
        self.needs_id_range = driver.shares_kernel
        self._driver = driver
        self._config = config
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
        self._home = config.node_dir / "rt" / boot / driver.name
        self._cgroups = Cgroups(config.instance)
        self._reaper = processes.Reaper()
        self._bridges: dict[SandboxId, int] = {}
        processes.become_subreaper()

    async def version(self) -> str:
        """What `--version` says first.

        Raises:
            Refused: It is not installed, or does not run.
        """
        try:
            done = await processes.run([self.name, "--version"], deadline_s=VERSION_DEADLINE_S)
        except FileNotFoundError:
            raise Refused(f"{self.name} is not installed. Install the package '{self._driver.package}'.") from None
        if done.code != 0:
            raise Refused(f"'{self.name} --version' failed: {done.output.strip()[-300:]}")
        return done.output.partition("\n")[0].removeprefix(f"{self.name} version ").strip()

    async def probe(self) -> Probe:
        """Boot a real, empty sandbox under a deadline. Never raises: what went wrong is in the probe."""
        try:
            version = await self.version()
            if reason := self._driver.refuses_version(version):
                return Probe(self.name, False, reason, f"Install a newer package '{self._driver.package}'.")
            return await boot_probe(self, self._config, version)
        except (SkerryError, OSError) as error:
            return Probe(self.name, False, str(error), f"Run 'skerry doctor' after mending it: {self.name} must boot.")

    async def expect_start(self) -> None:
        """See `seams.Runtime.expect_start`: the kernel is prepared for processes that join cgroups."""
        await asyncio.to_thread(self._cgroups.expect_joins)

    async def start(self, bundle: Bundle) -> socket.socket:
        """Create and start the sandbox; the host's end of its stdio socketpair (non-blocking).

        Raises:
            Conflict: It runs already; `bridge` is the way to it.
            Refused: The runtime would not; the message has its own last words. Nothing is left behind.
        """
        if await self.running(bundle.sandbox_id):
            raise Conflict(f"Sandbox {bundle.sandbox_id} runs already.", code="already_running")
        host, inside = processes.stdio_pair()
        try:
            with inside:
                await self._run_detached(bundle, inside)
        except BaseException as error:
            host.close()
            await asyncio.shield(self.delete(bundle.sandbox_id))
            if isinstance(error, (OSError, DeadlineExceeded)):
                raise Refused(f"{self.name} could not start the sandbox: {error}") from error
            raise
        return host

    async def _run_detached(self, bundle: Bundle, inside: socket.socket) -> None:
        sandbox_id = bundle.sandbox_id
        self._state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.pid_file(sandbox_id).parent.mkdir(mode=0o700, exist_ok=True)
        await processes.in_thread(lambda: self._driver.prepare(bundle))
        oci.write(bundle, self._dialect(sandbox_id))
        log = bundle.directory / "runtime.log"
        log.unlink(missing_ok=True)
        null = processes.null_device(bundle.directory, self._driver.descriptors)
        try:
            done = await self._reaper.run(
                [
                    *self._command("--log", str(log), "--log-format", "json"),
                    *("run", "--detach", "--bundle", str(bundle.directory)),
                    *("--pid-file", str(self.pid_file(sandbox_id)), sandbox_id),
                ],
                deadline_s=START_DEADLINE_S,
                # The sandbox keeps what it is given for all its life: its channel, and no pipe or file of ours.
                stdio=processes.Stdio(
                    inside.fileno(), inside.fileno(), null, (null,) if self._driver.descriptors else ()
                ),
                prepare=self._enter,
            )
        finally:
            os.close(null)
        # A moment later, while its daemon starts: nobody has to wait for it.
        asyncio.get_running_loop().call_soon(self._adopt, sandbox_id)
        if done.code != 0:
            raise Refused(
                f"{self.name} could not start the sandbox (exit {done.code}): {last_words.read(log)}."
                f" 'skerry doctor' tells what this host lacks."
            )

    async def bridge(self, sandbox_id: SandboxId) -> socket.socket:
        """A new way to sbxd in a running sandbox: a socket to it, or joined to the stdio of `sbxd bridge` inside.

        A second bridge to the same sandbox ends the first.

        Raises:
            SandboxGone: It does not run.
            Unavailable: It runs, and sbxd does not answer in it.
        """
        if not await self.running(sandbox_id):
            raise SandboxGone(f"Sandbox {sandbox_id} does not run.")
        self._end_bridge(sandbox_id)
        if not self.shares_kernel:
            await self._wake(sandbox_id)
        host = await (self._connect(sandbox_id) if self.shares_kernel else self._execute_bridge(sandbox_id))
        try:
            await asyncio.wait_for(processes.readable(host.fileno()), BRIDGE_DEADLINE_S)
            answered = host.recv(1, socket.MSG_PEEK) != b""
        except (TimeoutError, OSError):
            answered = False
        except BaseException:
            self._end_bridge(sandbox_id)
            host.close()
            raise
        if answered:
            return host
        self._end_bridge(sandbox_id)
        host.close()
        if not await self.running(sandbox_id):
            raise SandboxGone(f"Sandbox {sandbox_id} died.")
        raise Unavailable(f"sbxd in sandbox {sandbox_id} does not answer a bridge. Destroy the sandbox if it stays so.")

    async def _wake(self, sandbox_id: SandboxId) -> None:
        """Have sbxd go on that root inside has stopped. Linux shields a first process from that, gVisor does not."""
        with suppress(SkerryError):  # what is wrong then, the bridge tells
            await self._reaper.run(
                self._command("kill", sandbox_id, "CONT"), deadline_s=WAKE_DEADLINE_S, prepare=self._enter
            )

    async def _execute_bridge(self, sandbox_id: SandboxId) -> socket.socket:
        host, inside = processes.stdio_pair()
        with inside:
            self._bridges[sandbox_id] = await self._reaper.spawn(
                self._command("exec", sandbox_id, oci.SBXD, "bridge"),
                processes.Stdio(inside.fileno(), inside.fileno(), None),
                self._enter,
            )
        return host

    async def _connect(self, sandbox_id: SandboxId) -> socket.socket:
        """Where the kernel is shared, sbxd's socket can be reached without a process inside.

        `runc exec` could not be used: it joins the user namespace first, and from there not the network namespace.
        """
        pid = self._pid(sandbox_id)
        try:
            return await processes.in_thread(lambda: namespaces.connect_inside(pid or -1, oci.SBXD_SOCKET))
        except OSError as error:
            if not await self.running(sandbox_id):
                raise SandboxGone(f"Sandbox {sandbox_id} died.") from error
            raise Unavailable(f"sbxd in sandbox {sandbox_id} does not listen: {error}.") from error

    async def running(self, sandbox_id: SandboxId) -> bool:
        """Whether the sandbox's first process lives."""
        pid = self._pid(sandbox_id)
        return pid is not None and self._cgroups.holds(pid, sandbox_id)

    async def wait_dead(self, sandbox_id: SandboxId) -> Cause:
        """Return when the sandbox has died, with why (`oom` told from `runtime_died`). Unknown: at once."""
        pid = self._pid(sandbox_id)
        if pid is None:
            return Cause.RUNTIME_DIED
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return self._cause(sandbox_id, pid)
        try:
            # Only after the pidfd is open does the check prove that it is the sandbox's process.
            if self._cgroups.holds(pid, sandbox_id):
                await processes.readable(pidfd)
        finally:
            os.close(pidfd)
        return self._cause(sandbox_id, pid)

    def _cause(self, sandbox_id: SandboxId, pid: int) -> Cause:
        killed = self._reaper.exit_code(pid) in (None, -signal.SIGKILL)
        return Cause.OOM if killed and self._cgroups.oom_kills(sandbox_id) > 0 else Cause.RUNTIME_DIED

    async def usage(self, sandbox_ids: Sequence[SandboxId]) -> Mapping[SandboxId, Usage]:
        """What each uses now; those that are gone are left out."""

        def read() -> Mapping[SandboxId, Usage]:
            found = ((sandbox_id, self._cgroups.usage(sandbox_id)) for sandbox_id in sandbox_ids)
            return {sandbox_id: usage for sandbox_id, usage in found if usage is not None}

        return await asyncio.to_thread(read)

    async def oom_kills(self, sandbox_id: SandboxId) -> int:
        """How often the kernel has killed for the sandbox's memory limit. 0 when it is gone."""
        return self._cgroups.oom_kills(sandbox_id)

    async def delete(self, sandbox_id: SandboxId) -> None:
        """Kill and remove all the runtime holds of it, cgroups included. Unknown: success.

        Raises:
            Refused: Something of it does not die.
            DeadlineExceeded: The runtime does not let go of it.
        """
        self._end_bridge(sandbox_id)
        self._adopt(sandbox_id)
        # Killed by us first: the runtime then finds a dead sandbox, which it removes without its own waiting.
        for pid in await self._cgroups.kill(sandbox_id):
            self._reaper.adopt(pid)  # gVisor's stubs too: children of the sentry until it died
        if self._records(sandbox_id):
            await self._reaper.run(
                self._command("delete", "--force", sandbox_id), deadline_s=DELETE_DEADLINE_S, prepare=self._enter
            )
        # What a start that was killed half-way left is no container to the runtime. Nothing of it runs any more.
        for path in self._records(sandbox_id):
            await asyncio.to_thread(shutil.rmtree, path) if path.is_dir() else path.unlink(missing_ok=True)
        await self._cgroups.remove(sandbox_id)
        self.pid_file(sandbox_id).unlink(missing_ok=True)

    async def list(self) -> set[SandboxId]:
        """What the runtime knows of this instance, running or not."""
        names = [path.name for path in (*_entries(self._state), *_entries(self._home / "pids"))]
        stems = {name.partition("_sandbox:")[0].removeprefix("runsc-").removesuffix(".sock") for name in names}
        return {SandboxId(stem) for stem in stems if is_id(stem, "sbx")} | self._cgroups.sandboxes()

    async def close(self) -> None:
        """Let go of all descriptors, and of the instance's cgroup if it is empty. The sandboxes go on."""
        for sandbox_id in tuple(self._bridges):
            self._end_bridge(sandbox_id)
        self._reaper.close()
        self._cgroups.remove_parent()

    @property
    def _state(self) -> Path:
        return self._home / "state"

    def _command(self, *arguments: str) -> Sequence[str]:
        return (self.name, "--root", str(self._state), *self._driver.flags, *arguments)

    def _enter(self) -> None:
        self._driver.enter(self._cgroups.layout)

    def _dialect(self, sandbox_id: SandboxId) -> oci.Dialect:
        return oci.Dialect(
            cgroups_path=self._cgroups.oci_path(sandbox_id),
            swap_counted=self._cgroups.layout.swap_counted,
            shares_kernel=self.shares_kernel,
            counts_own_threads=self._driver.counts_own_threads,
        )

    def pid_file(self, sandbox_id: SandboxId) -> Path:
        """Holds the pid on the host of what `wait_dead` waits for: the first process, or gVisor's sentry."""
        return self._home / "pids" / sandbox_id

    def _pid(self, sandbox_id: SandboxId) -> int | None:
        try:
            return int(self.pid_file(sandbox_id).read_text())
        except (OSError, ValueError):
            return None

    def _records(self, sandbox_id: SandboxId) -> Sequence[Path]:
        # runsc has <id>_sandbox:<id>.state and .lock, and runsc-<id>.sock. No id is a part of another.
        return tuple(path for path in _entries(self._state) if sandbox_id in path.name)

    def _adopt(self, sandbox_id: SandboxId) -> None:
        for pid in self._cgroups.processes(sandbox_id):
            self._reaper.adopt(pid)

    def _end_bridge(self, sandbox_id: SandboxId) -> None:
        pid = self._bridges.pop(sandbox_id, None)
        if pid is not None:
            self._reaper.kill(pid)


def _entries(directory: Path) -> list[Path]:
    try:
        return list(directory.iterdir())
    except FileNotFoundError:
        return []


def forget_other_boots(config: Config) -> None:
    """Remove what runtimes recorded before the host's last reboot: nothing of it runs any more."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    for directory in _entries(config.node_dir / "rt"):
        if directory.name != boot:
            shutil.rmtree(directory, ignore_errors=True)
