"""gVisor: a kernel of its own for each sandbox, in user space. The default, and the only one that isolates the kernel.

Its peculiarities, all met with release 20240729:
- It will not start with a network where a fresh network namespace shows /proc/sys/net/core/rmem_default: an empty
  tmpfs over /proc/sys/net, in a mount namespace of its own, takes the file out of its sight.
- It puts a tmpfs over /tmp where that is empty, which would escape the disk limit: a hidden file keeps it away.
- It matches ids by prefix; ours are of one length.
- Each of its processes, five of them one after another, registers for memory barriers that only the platform kvm uses,
  and waits for it: a filter refuses it. Programs inside have their barriers from another call.
- The sentry puts descriptors at 256 and above. A table that grows waits, in a process with threads: it gets one that is
  large already. runsc closes what it was given at its own execs, and the table stays.
"""

import contextlib
import os
import re
import stat

from skerry.model.bundle import Bundle
from skerry.node import namespaces, syscall_filter
from skerry.node.cgroups import Layout
from skerry.node.runtimes.command_line import Driver

OLDEST = 20240729
KEEPER = ".skerry"


def _enter(_layout: Layout) -> None:
    namespaces.private_mounts()
    namespaces.cover_with_tmpfs("/proc/sys/net")
    with contextlib.suppress(OSError):
        syscall_filter.refuse_expedited_barriers()


def _refuses_version(version: str) -> str:
    date = re.search(r"\b(20\d{6})\b", version)
    if date is not None and int(date[1]) >= OLDEST:
        return ""
    return f"runsc {version} is older than {OLDEST}: it lacks the systrap platform, or cannot checkpoint."


def _keep_tmp_on_the_root(bundle: Bundle) -> None:
    """Make sure that /tmp is a directory with something in it. A link that the sandbox left there is replaced."""
    root = os.open(bundle.rootfs, os.O_PATH | os.O_DIRECTORY)
    try:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(os.stat("tmp", dir_fd=root, follow_symlinks=False).st_mode):
                os.unlink("tmp", dir_fd=root)
        with contextlib.suppress(FileExistsError):
            os.mkdir("tmp", dir_fd=root)
            os.chmod("tmp", 0o1777, dir_fd=root)  # past the umask
        tmp = os.open("tmp", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=root)
    finally:
        os.close(root)
    try:
        with contextlib.suppress(FileExistsError):
            os.close(os.open(KEEPER, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444, dir_fd=tmp))
    finally:
        os.close(tmp)


RUNSC = Driver(
    name="runsc",
    shares_kernel=False,
    package="runsc",
    flags=(
        "--platform=systrap",  # needs no virtualisation; kvm hangs on some hosts that have the device
        "--network=sandbox",
        # Writes go to the host's directory at once, where they are counted, seen, snapshotted and forked.
        "--overlay2=none",
        # The sandbox is the only one that writes its trees while it runs; the host reads snapshots of them.
        "--file-access=exclusive",
        "--file-access-mounts=exclusive",
        "--host-uds=none",
        "--net-raw=false",
        "--oci-seccomp",  # without it the profile is read and ignored
        "--cpu-num-from-quota=true",
    ),
    enter=_enter,
    refuses_version=_refuses_version,
    prepare=_keep_tmp_on_the_root,
    counts_own_threads=True,
    descriptors=512,
)
