"""The OCI configuration of a sandbox: what it sees, may do and may use. Pure: writes no file, starts nothing."""

import hashlib
import json
import math
import resource
from dataclasses import dataclass

from skerry.model.bundle import Bundle
from skerry.node import seccomp

# What apt-get, dpkg and pip need as root inside. Not: NET_RAW (forged packets), MKNOD (devices), SYS_ADMIN, SYS_PTRACE,
# SETFCAP (file capabilities that outlive the sandbox), AUDIT_WRITE (the host's log).
CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/keys",
    "/proc/key-users",
    "/proc/kmsg",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SBXD = "/.skerry/sbxd"
SBXD_SOCKET = b"\0skerry-sbxd"  # abstract, so it belongs to the network namespace
OPEN_FILES = 65_536
CPU_PERIOD_US = 100_000


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one runtime wants to be told, and what it cannot enforce in the common way."""

    cgroups_path: str
    swap_counted: bool
    shares_kernel: bool
    counts_own_threads: bool  # the pids limit of the cgroup also counts the runtime's threads: runsc


def write(bundle: Bundle, dialect: Dialect) -> None:
    """Write config.json and the files it mounts into the bundle's directory. Overwrites what is there."""
    directory = bundle.directory
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "resolv.conf").write_text(bundle.resolv_conf)
    (directory / "hostname").write_text(bundle.hostname + "\n")
    (directory / "hosts").write_text(
        f"127.0.0.1\tlocalhost {bundle.hostname}\n::1\tlocalhost ip6-localhost ip6-loopback\n"
    )
    (directory / "machine-id").write_text(machine_id(bundle) + "\n")
    (directory / "config.json").write_text(json.dumps(configuration(bundle, dialect)))


def machine_id(bundle: Bundle) -> str:
    """32 hex digits, as machine-id(5) wants them: of this sandbox alone, and the same each time it comes back."""
    return hashlib.sha256(f"machine-id of {bundle.sandbox_id}".encode()).hexdigest()[:32]


def configuration(bundle: Bundle, dialect: Dialect) -> dict[str, object]:
    """The content of config.json (OCI runtime specification 1.0.2)."""
    return {
        "ociVersion": "1.0.2",
        "process": _process(bundle, dialect),
        "root": {"path": str(bundle.rootfs), "readonly": False},
        "hostname": bundle.hostname,
        "mounts": _mounts(bundle),
        "linux": _linux(bundle, dialect),
    }


def _process(bundle: Bundle, dialect: Dialect) -> dict[str, object]:
    return {
        "terminal": False,
        "user": {"uid": 0, "gid": 0},
        "args": [SBXD, "init"],
        "env": [f"PATH={DEFAULT_PATH}"],
        "cwd": "/",
        # No inheritable and no ambient set: a command that runs as another user has no capability at all.
        "capabilities": {"bounding": CAPABILITIES, "effective": CAPABILITIES, "permitted": CAPABILITIES},
        "noNewPrivileges": True,
        "rlimits": _rlimits(bundle, dialect),
    }


def _rlimits(bundle: Bundle, dialect: Dialect) -> list[dict[str, object]]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    open_files = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    limits = {"RLIMIT_NOFILE": open_files, "RLIMIT_CORE": 0}
    if dialect.counts_own_threads:
        # gVisor enforces this inside, per user. On a shared kernel the cgroup counts exactly, whoever the user is.
        limits["RLIMIT_NPROC"] = bundle.limits.processes
    return [{"type": name, "hard": value, "soft": value} for name, value in limits.items()]


def _mount(target: str, source: str, kind: str, *options: str) -> dict[str, object]:
    return {"destination": target, "source": source, "type": kind, "options": list(options)}


def _file(bundle: Bundle, name: str) -> dict[str, object]:
    # Read-only: what is written through it would land on the host's disk, outside every limit.
    source = str(bundle.directory / name)
    return _mount(f"/etc/{name}", source, "bind", "bind", "ro", "nosuid", "nodev", "noexec")


def _mounts(bundle: Bundle) -> list[dict[str, object]]:
    shared_memory = f"size={bundle.limits.memory_mb // 2}m"
    return [
        _mount("/proc", "proc", "proc", "nosuid", "noexec", "nodev"),
        _mount("/dev", "tmpfs", "tmpfs", "nosuid", "strictatime", "mode=755", "size=1m"),
        _mount(
            "/dev/pts", "devpts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"
        ),
        _mount("/dev/shm", "shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", shared_memory),
        # Nothing at /tmp: it lies on the root layer, where the disk limit counts it.
        _mount("/run/skerry", "tmpfs", "tmpfs", "nosuid", "noexec", "nodev", "mode=755", "size=64k"),
        _mount("/workspace", str(bundle.workspace), "bind", "bind", "nosuid", "nodev"),
        _mount(SBXD, str(bundle.sbxd), "bind", "bind", "ro", "nosuid", "nodev"),
        *(_file(bundle, name) for name in ("resolv.conf", "hosts", "hostname", "machine-id")),
    ]


def _linux(bundle: Bundle, dialect: Dialect) -> dict[str, object]:
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "mount", "uts", "ipc", "cgroup")]
    namespaces.append({"type": "network", "path": str(bundle.netns)})
    linux: dict[str, object] = {
        "cgroupsPath": dialect.cgroups_path,
        "resources": _resources(bundle, dialect),
        "maskedPaths": list(MASKED_PATHS),
        "readonlyPaths": list(READ_ONLY_PATHS),
    }
    if bundle.id_range is not None:
        namespaces.append({"type": "user"})
        mapping = [{"containerID": 0, "hostID": bundle.id_range.base, "size": bundle.id_range.size}]
        linux |= {"uidMappings": mapping, "gidMappings": mapping}
    filters = seccomp.for_shared_kernel() if dialect.shares_kernel else seccomp.for_gvisor()
    return linux | {"namespaces": namespaces, "seccomp": filters}


def _resources(bundle: Bundle, dialect: Dialect) -> dict[str, object]:
    limits = bundle.limits
    memory_bytes = limits.memory_mb << 20
    memory = {"limit": memory_bytes} | ({"swap": memory_bytes} if dialect.swap_counted else {})
    processes = limits.processes
    if dialect.counts_own_threads:
        # A low limit would hit the sentry's own threads and kill the sandbox. RLIMIT_NPROC is the limit inside.
        processes = 4 * processes + 1024
    return {
        "devices": [{"allow": False, "access": "rwm"}],
        "memory": memory,
        "cpu": {"quota": math.ceil(limits.cpu_millis * CPU_PERIOD_US / 1000), "period": CPU_PERIOD_US},
        "pids": {"limit": processes},
    }
