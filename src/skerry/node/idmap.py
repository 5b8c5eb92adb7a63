"""User namespaces that exist only to describe an id mapping, kept as descriptors. Runs nothing in them."""

import os
import subprocess
import threading
from collections import OrderedDict
from pathlib import Path

from skerry.model.bundle import IdRange

_KEPT = 256  # descriptors; a range that comes back is found here instead of costing a process
_START_TIMEOUT_S = 10.0


class IdMaps:
    """A cache of namespaces, one a range. Thread-safe. `close` gives the descriptors back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fds: OrderedDict[IdRange, int] = OrderedDict()

    def open(self, ids: IdRange) -> int:
        """A descriptor of a namespace that maps 0…size-1 to `ids`; the caller closes it.

        Raises:
            OSError: The kernel gives no user namespace.
        """
        with self._lock:
            kept = self._fds.get(ids)
            if kept is not None:
                self._fds.move_to_end(ids)
                return os.dup(kept)
        fd = _new_namespace(ids)
        with self._lock:
            if ids in self._fds:
                return fd
            self._fds[ids] = os.dup(fd)
            if len(self._fds) > _KEPT:
                os.close(self._fds.popitem(last=False)[1])
        return fd

    def close(self) -> None:
        with self._lock:
            while self._fds:
                os.close(self._fds.popitem()[1])


def _new_namespace(ids: IdRange) -> int:
    """A namespace needs a process to be born in; it ends as soon as we hold a descriptor.

    A child with another program, not a fork: this process has threads.
    """
    child = subprocess.Popen(
        ["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None and child.stdout is not None
    watchdog = threading.Timer(_START_TIMEOUT_S, child.kill)
    watchdog.start()
    try:
        child.stdin.write(b".")
        child.stdin.flush()
        # The echo says that `unshare` has made the namespace and become `cat`.
        if child.stdout.read(1) != b".":
            raise OSError("this kernel gives no user namespace (is user.max_user_namespaces 0?)")
        directory = Path(f"/proc/{child.pid}")
        for name in ("uid_map", "gid_map"):
            (directory / name).write_text(f"0 {ids.base} {ids.size}\n")
        return os.open(directory / "ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        watchdog.cancel()
        child.stdin.close()
        child.stdout.close()
        child.wait()
