"""Keeps a few child processes alive: starts what died again, ends all in order. Knows no part of Skerry."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import structlog

log = structlog.get_logger("skerry.supervisor")

STOP_S = 20.0  # from SIGTERM to SIGKILL
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.1, 10.0
STEADY_S = 30.0  # a child that lived this long died for a new reason: the backoff starts afresh

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_WATCHED = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


@dataclass(frozen=True, slots=True)
class Child:
    """A process to keep alive."""

    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    pass_fds: Sequence[int] = ()


class _Kept:
    """One child and its present process."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.process: subprocess.Popen[bytes] | None = None
        self.due = 0.0  # when to start it, on the monotonic clock
        self._started = 0.0
        self._failures = 0

    def start(self) -> None:
        self._started = time.monotonic()
        self.process = subprocess.Popen(
            list(self.child.argv),
            env=dict(self.child.env),
            pass_fds=list(self.child.pass_fds),
            stdin=subprocess.DEVNULL,
        )
        log.info("started", part=self.child.name, pid=self.process.pid)

    def reap(self) -> None:
        """Notice a death, and plan the next start."""
        if self.process is None or self.process.poll() is None:
            return
        now = time.monotonic()
        self._failures = 0 if now - self._started >= STEADY_S else self._failures + 1
        pause = min(FIRST_BACKOFF_S * 2 ** max(self._failures - 1, 0), LONGEST_BACKOFF_S)
        log.warning("died", part=self.child.name, code=self.process.returncode, again_in_s=pause)
        self.process, self.due = None, now + pause

    def stop(self) -> None:
        """SIGTERM, patience, SIGKILL."""
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            log.warning("had to be killed", part=self.child.name, after_s=STOP_S)
            self.process.kill()
            self.process.wait()


def supervise(children: Sequence[Child], chore: Callable[[], float] | None = None) -> None:
    """Keep `children` alive until SIGTERM or SIGINT; then end them, the last one first.

    `chore` is done between; it says in how many seconds it wants to be called again, and keeps nobody waiting.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    kept = [_Kept(child) for child in children]
    chore_due = float("inf") if chore is None else 0.0
    try:
        while True:
            for one in kept:
                one.reap()
                if one.process is None and one.due <= time.monotonic():
                    one.start()
            if chore is not None and chore_due <= time.monotonic():
                chore_due = time.monotonic() + chore()
            if _next_signal(kept, chore_due) in (signal.SIGTERM, signal.SIGINT):
                return
    finally:
        for one in reversed(kept):
            one.stop()


def _next_signal(kept: Sequence[_Kept], chore_due: float) -> int | None:
    due = min([one.due for one in kept if one.process is None] + [chore_due])
    if due == float("inf"):
        return signal.sigwaitinfo(_WATCHED).si_signo
    told = signal.sigtimedwait(_WATCHED, max(due - time.monotonic(), 0.0))
    return told.si_signo if told is not None else None


def become_child() -> None:
    """First words of a child: take signals again, and die with the supervisor.

    To be called after a change of user, which makes the kernel forget the wish. SIGKILL, because a supervisor that
    was killed says nothing about how its children should end: what they leave is repaired at the next start.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    parent = int(os.environ["SKERRY_SUPERVISOR"])
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit("The supervisor is gone.")


def keep_freed_memory() -> None:
    """Have malloc keep a few freed megabytes for the next block, in place of returning them to the system each time.

    What streams files allocates and frees blocks of 256 KiB at a high rate: by glibc's own rule each of them is
    unmapped or trimmed, and faulted in and zeroed anew, which costs more than all copying. Elsewhere nothing happens.
    """
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 21)
        mallopt(_M_TRIM_THRESHOLD, 1 << 22)


def drop_privileges(uid: int, gid: int) -> None:
    """Become an unprivileged user for good: no supplementary groups, no way back by any executable."""
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.umask(0o077)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")
