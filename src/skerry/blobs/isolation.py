"""What a worker gives up before it looks at a hostile tree: time, privileges, and outliving the node.

Called once, before there is a second thread: capabilities belong to threads.
"""

import ctypes
import os
import platform
import signal
from collections.abc import Sequence
from enum import IntEnum

_PR_SET_DUMPABLE = 4
_PR_SET_PDEATHSIG, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 23, 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
_IOPRIO_BEST_EFFORT_LOWEST = 2 << 13 | 7
_NICE, _NICE_WAITED_FOR = 15, 5

_libc = ctypes.CDLL(None, use_errno=True)


class Capability(IntEnum):
    CHOWN = 0
    DAC_OVERRIDE = 1
    DAC_READ_SEARCH = 2
    FOWNER = 3
    FSETID = 4


READING = (Capability.DAC_READ_SEARCH,)
# FSETID: else a file of a group that is not ours loses its setgid bit. No SETFCAP: no archive brings capabilities.
WRITING = (Capability.CHOWN, Capability.DAC_OVERRIDE, Capability.FOWNER, Capability.FSETID)


def die_with(parent_pid: int) -> None:
    """Be killed when the parent's thread that started this process ends; at once, if it has ended already."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent_pid:
        os._exit(1)


def keep_to_itself() -> None:
    """Leave no core behind, and let no process read this one's memory: a vault's key is in it."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def yield_to_others(*, waited_for: bool) -> None:
    """Take what time the sandboxes leave; somewhat more of it when a user waits for the result.

    The idle I/O class would take none at all on a busy disk.
    """
    os.nice(_NICE_WAITED_FOR if waited_for else _NICE)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:  # elsewhere: at the priority that the kernel derives from `nice`
        _check(_libc.syscall(number, 1, 0, _IOPRIO_BEST_EFFORT_LOWEST), "ioprio_set")


def keep_only(capabilities: Sequence[Capability]) -> None:
    """Have these capabilities and no more, ever again. Without root there is nothing to give up but new ones."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    if os.geteuid() != 0:
        return
    for number in range(64):
        if number not in capabilities and _libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0) == 1:
            _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "prctl(PR_CAPBSET_DROP)")
    _check(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT)")
    mask = sum(1 << one for one in capabilities)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _check(_libc.capset(header, data), "capset")


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
