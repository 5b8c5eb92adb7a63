"""Host programs: started in namespaces of their own, waited for under a deadline, reaped when orphaned.

For the node's own helpers (OCI runtimes). Never for what runs inside a sandbox, and never a shell.

A detached sandbox is orphaned when the runtime that made it exits. The node is a *child subreaper*, so the orphan
becomes its child, and whoever does not reap it makes `runsc delete` wait for a zombie. Orphans are reaped by pidfd,
one by one: a `wait` for any child would steal the exit status of a process that somebody else is waiting for.
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import signal
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from skerry.guest.sockets import widen
from skerry.model.errors import DeadlineExceeded
from skerry.node.namespaces import check, libc

T = TypeVar("T")

OUTPUT_LIMIT_BYTES = 65_536
ORPHAN_GRACE_S = 15.0  # a zombie nobody has claimed for this long is an orphan: waiters reap theirs at once

_REEXECUTED = "exe"  # /proc/self/exe

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program ended: `code` is its exit code, or minus the signal that killed it."""

    code: int
    output: str  # stdout and stderr in the order written, the first 64 KiB


@dataclass(frozen=True, slots=True)
class Stdio:
    """Descriptors for a child's stdin, stdout and stderr. None: /dev/null, and for both outputs: captured."""

    stdin: int | None = None
    stdout: int | None = None
    stderr: int | None = None
    others: tuple[int, ...] = ()  # inherited under their own numbers


def null_device(directory: Path, table: int = 0) -> int:
    """A null device of one's own, open for reading and writing; it has no name.

    Whoever inherits it under its number has a table of at least `table` descriptors: the kernel copies that much.

    Not the host's: crun and runc give what a container inherits to its root, and /dev/null would then be a sandbox's
    to change. Where no device can be made (`directory` is on a file system without them), an error says so.
    """
    name = directory / f"null.{secrets.token_hex(8)}"
    os.mknod(name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    try:
        null = os.open(name, os.O_RDWR | os.O_CLOEXEC)
    finally:
        name.unlink()
    try:
        return fcntl.fcntl(null, fcntl.F_DUPFD_CLOEXEC, max(table - 1, 0))
    finally:
        os.close(null)


def become_subreaper() -> None:
    """Have orphaned descendants re-parented to this process. Safe to call twice."""
    check(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


async def in_thread(function: Callable[[], T]) -> T:
    """Run `function` in a thread that ends with it, so that the namespaces it enters end too.

    A cancelled caller still waits for it: what the function made must not be lost.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, result)

    threading.Thread(target=work, daemon=True, name="spawn").start()
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        await asyncio.wait([future])
        if not future.cancelled() and future.exception() is None:
            _dispose(future.result())
        raise


def _dispose(result: object) -> None:
    if isinstance(result, subprocess.Popen):
        result.kill()
        result.wait()


async def readable(descriptor: int) -> None:
    """Return when `descriptor` can be read; for a pidfd: when the process has ended. Cancellation is safe."""
    loop = asyncio.get_running_loop()
    own = os.dup(descriptor)  # the loop knows one callback a descriptor; two waiters need two
    ready = asyncio.Event()
    loop.add_reader(own, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(own)
        os.close(own)


async def spawn(
    argv: Sequence[str], stdio: Stdio, prepare: Callable[[], None] | None = None
) -> subprocess.Popen[bytes]:
    """Start a program, in the namespaces that `prepare` puts its thread in. The caller waits for it.

    It inherits the descriptors of `stdio` and nothing else.
    """

    def start() -> subprocess.Popen[bytes]:
        if prepare is not None:
            prepare()
        # No preexec_fn and no user change: CPython then uses vfork, whose cost does not grow with our memory.
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL if stdio.stdin is None else stdio.stdin,
            stdout=subprocess.DEVNULL if stdio.stdout is None else stdio.stdout,
            stderr=subprocess.DEVNULL if stdio.stderr is None else stdio.stderr,
            close_fds=True,
            pass_fds=stdio.others,
            start_new_session=True,
        )

    return await in_thread(start)


async def wait(process: subprocess.Popen[bytes]) -> int:
    """Wait for a child of ours and reap it: its exit code, or minus the signal."""
    if process.poll() is None:
        pidfd = os.pidfd_open(process.pid)
        try:
            await readable(pidfd)
        finally:
            os.close(pidfd)
    return process.wait()


async def run(
    argv: Sequence[str],
    *,
    deadline_s: float,
    stdio: Stdio | None = None,
    prepare: Callable[[], None] | None = None,
) -> Finished:
    """Run a program to its end and capture what it says, unless `stdio` sends that elsewhere.

    Raises:
        DeadlineExceeded: It had not ended after `deadline_s`; its session's processes in our group were killed.
        FileNotFoundError: No such program.
    """
    with _capture() as capture:
        process = await spawn(argv, stdio or Stdio(stdout=capture, stderr=capture), prepare)
        try:
            code = await asyncio.wait_for(wait(process), deadline_s)
        except TimeoutError:
            raise DeadlineExceeded(f"{argv[0]} did not end within {deadline_s:g} s and was killed.") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        output = os.pread(capture, OUTPUT_LIMIT_BYTES, 0).rstrip(b"\0")
    return Finished(code, output.decode(errors="replace"))


@contextlib.contextmanager
def _capture() -> Generator[int]:
    # Not a pipe: a descendant that keeps it open would keep a reader waiting. The seal bounds what can be written.
    capture = os.memfd_create("output", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(capture, OUTPUT_LIMIT_BYTES)
        fcntl.fcntl(capture, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
        yield capture
    finally:
        os.close(capture)


def parent_of(pid: int) -> int | None:
    """The parent's pid, or None when there is no such process."""
    stat = _stat(pid)
    return None if stat is None else stat.parent


class _Stat(NamedTuple):
    name: str
    state: str
    parent: int
    session: int


def _stat(pid: int) -> _Stat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name_end = text.rindex(")")  # the name may hold anything, parentheses too
    state, parent, _group, session = text[name_end + 2 :].split()[:4]
    return _Stat(text[text.index("(") + 1 : name_end], state, int(parent), int(session))


class Reaper:
    """Reaps the orphans that became children of this process, and nobody else's children."""

    def __init__(self) -> None:
        self._watched: dict[int, int] = {}  # pid → pidfd
        self._codes: dict[int, int] = {}
        self._zombies: dict[int, float] = {}  # pid → when it was first seen dead

    def adopt(self, pid: int) -> None:
        """Reap `pid` as soon as it dies. Not a child of ours, already dead or already adopted: nothing happens."""
        if pid in self._watched or parent_of(pid) != os.getpid():
            return
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        self._codes.pop(pid, None)
        if self._reaped(pid, pidfd):
            os.close(pidfd)
            return
        self._watched[pid] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, self._on_exit, pid)

    async def spawn(self, argv: Sequence[str], stdio: Stdio, prepare: Callable[[], None] | None = None) -> int:
        """Start a program that nobody will wait for, and reap it when it ends: its pid."""
        process = await spawn(argv, stdio, prepare)
        self.adopt(process.pid)
        process.returncode = 0  # it is the reaper's now: the object shall neither wait for it nor complain
        return process.pid

    def kill(self, pid: int) -> None:
        """SIGKILL a process adopted here. Dead or never adopted: nothing happens."""
        if pid in self._watched:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._watched[pid], signal.SIGKILL)

    def exit_code(self, pid: int) -> int | None:
        """How an adopted process ended (minus the signal), told once; None when it runs or that is not known."""
        pidfd = self._watched.get(pid)
        if pidfd is not None and self._reaped(pid, pidfd):  # dead, and our own turn to notice is yet to come
            self._unwatch(pid)
        return self._codes.pop(pid, None)

    def _on_exit(self, pid: int) -> None:
        if pid in self._watched:  # else `exit_code` was quicker
            self._reaped(pid, self._watched[pid])
            self._unwatch(pid)

    def _unwatch(self, pid: int) -> None:
        pidfd = self._watched.pop(pid)
        asyncio.get_running_loop().remove_reader(pidfd)
        os.close(pidfd)

    def _reaped(self, pid: int, pidfd: int) -> bool:
        try:
            result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG)
        except ChildProcessError:
            return True
        if result is not None:
            self._codes[pid] = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        return result is not None

    async def run(
        self,
        argv: Sequence[str],
        *,
        deadline_s: float,
        stdio: Stdio | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> Finished:
        """As `run`, for a program that leaves processes behind: they are reaped as they die."""
        try:
            return await run(argv, deadline_s=deadline_s, stdio=stdio, prepare=prepare)
        finally:
            asyncio.get_running_loop().call_soon(self._collect)  # once the caller has gone on

    def _collect(self) -> None:
        """Adopt the orphans among our children.

        What this process forks itself is in its session, or leads one: a child in a session that is neither ours nor
        its own was forked by another. An orphan that leads a session (a sandbox's first process) is adopted by whoever
        knows its pid, or has the name of a Go program that executed itself (gVisor's stubs, handed to us when the
        sentry dies); the rest is told from a child that somebody waits for by how long it has been dead.
        """
        now, seen, ours = time.monotonic(), dict[int, float](), os.getsid(0)
        for pid in _children():
            if pid in self._watched or (stat := _stat(pid)) is None:
                continue
            if stat.session not in (ours, pid) or (stat.state == "Z" and stat.name == _REEXECUTED):
                self.adopt(pid)
            elif stat.state == "Z":
                seen[pid] = self._zombies.get(pid, now)
                if now - seen[pid] >= ORPHAN_GRACE_S:
                    self.adopt(pid)
        self._zombies = seen

    def close(self) -> None:
        """Reap what is dead by now and stop. The others go on."""
        for pid in tuple(self._watched):
            self._on_exit(pid)


def _children() -> list[int]:
    return [
        int(pid)
        for task in Path("/proc/self/task").iterdir()
        for pid in _words(task / "children")  # per thread: each lists what it has forked or been handed
    ]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


def stdio_pair() -> tuple[socket.socket, socket.socket]:
    """The host's end (non-blocking) and the sandbox's end of a stdio channel."""
    host, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    host.setblocking(False)
    for end in (host, inside):
        widen(end)
    return host, inside
