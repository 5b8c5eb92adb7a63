"""The pool: the file system that holds templates and sandboxes. Found, made, grown, mounted, unmounted.

Native where the home lies on btrfs and simple quotas can be had there, else a sparse loop image, else (no btrfs on
this host) plain directories. Blocking: call from a thread. It never looks into a sandbox.
"""

import contextlib
import errno
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from skerry.config import Config
from skerry.model.capability import Probe
from skerry.model.errors import Refused, TooBusy
from skerry.node import btrfs, loops, mounts, quota
from skerry.node.trees import BtrfsTrees, PlainTrees, Trees

_MIB = 1 << 20
RESERVE_BYTES = 256 * _MIB  # below this the pool takes no new work: btrfs needs room to delete, too
_COMMAND_TIMEOUT_S = 120
# Left alone, data takes all space and the next directory entry finds none: metadata gets its share as data grows.
_OPTIONS = "discard=async,metadata_ratio=4"
_FLAGS = mounts.MS_NOSUID | mounts.MS_NODEV | mounts.MS_NOATIME


@dataclass(frozen=True, slots=True)
class Pool:
    """An open pool. `probe` says what it is, and what to do if that is less than it could be."""

    path: Path
    image: Path | None  # the loop image, if it is one
    trees: Trees
    probe: Probe

    @property
    def images(self) -> Path:
        return self.path / "images"

    @property
    def sandboxes(self) -> Path:
        return self.path / "sandboxes"

    @property
    def captures(self) -> Path:
        return self.path / "captures"

    @property
    def mounts(self) -> Path:
        return self.path / "mounts"

    def free_bytes(self) -> int:
        """What can still be written: a sparse image may promise more than the disk under it has."""
        here = os.statvfs(self.path)
        free = here.f_bavail * here.f_frsize
        if self.image is None:
            return free
        below = os.statvfs(self.image.parent)
        return min(free, below.f_bavail * below.f_frsize)


def open_pool(config: Config) -> Pool:
    """Make or find the pool of this instance and mount it. Called twice, or after a crash or reboot: the same pool.

    Raises:
        Refused: Something else is mounted there, or the image cannot be mounted.
    """
    path, image = config.pool_dir, _image_file(config)
    path.mkdir(parents=True, exist_ok=True)
    reason = _cannot_btrfs()
    if not image.exists() and btrfs.is_btrfs(config.home) and quota.enable(config.home, full=False):
        pool = _open_native(path)
    elif reason is None:
        pool = _open_image(path, image, config.pool_mb * _MIB)
    else:
        pool = open_plain(path, reason)
    prepare(pool)
    return pool


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as it lies there. Sizes are None where it is not mounted; then `disk_limit` is not known either."""

    path: Path
    mounted: bool
    image_bytes: int | None = None  # the loop image's promise, if there is one
    size_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None  # the disk under a sparse image considered
    disk_limit: str | None = None  # as `Layers.disk_limit`


def look(config: Config) -> PoolState | None:
    """The pool of this instance, whoever has it open; None: it was not made yet. Changes nothing."""
    path, image = config.pool_dir, _image_file(config)
    promised = image.stat().st_size if image.exists() else None
    if not (path.is_dir() and mounts.is_mount_root(path)):
        return PoolState(path, False, promised) if image.exists() or path.is_dir() else None
    here = os.statvfs(path)
    pool = Pool(path, image if image.exists() else None, PlainTrees(), Probe("pool", True, ""))
    return PoolState(
        path,
        True,
        promised,
        size_bytes=here.f_blocks * here.f_frsize,
        used_bytes=(here.f_blocks - here.f_bfree) * here.f_frsize,
        free_bytes=pool.free_bytes(),
        disk_limit=(btrfs.is_btrfs(path) and quota.mode(path)) or "none",
    )


def prepare(pool: Pool) -> None:
    """Make the directories of a pool, as far as they are missing."""
    # A runtime walks to its mounts with a sandbox's mapped ids; the rest is root's alone.
    own = (pool.images, pool.sandboxes, pool.captures)
    for directory, mode in ((pool.path, 0o711), (pool.mounts, 0o711), *((one, 0o700) for one in own)):
        directory.mkdir(exist_ok=True)
        directory.chmod(mode)


def require_room(pool: Pool, size_bytes: int) -> None:
    """Raises TooBusy where `size_bytes` more would leave less than the reserve."""
    if pool.free_bytes() < RESERVE_BYTES + size_bytes:
        raise full(pool)


def full(pool: Pool) -> TooBusy:
    return TooBusy(
        f"The pool {pool.path} has {pool.free_bytes() // _MIB} MB left, too little for this. "
        "Destroy sandboxes or snapshots, free disk space, or raise pool_mb.",
        retry_after_s=30,
        code="disk_full",
    )


def close_pool(pool: Pool) -> None:
    """Unmount all below the pool and the pool itself; the loop device goes with it. Safe to call twice."""
    for entry in reversed(mounts.mounts_under(pool.path)):
        with contextlib.suppress(OSError):  # busy, or already gone with another
            mounts.unmount(entry.target)  # waits until all is written, which a detached mount does later
        mounts.unmount_all(entry.target)


def _image_file(config: Config) -> Path:
    return config.home / "pool.img"


def _open_native(path: Path) -> Pool:
    _bind(path)
    kind = quota.mode(path) or "none"
    return Pool(path, None, BtrfsTrees(path, kind), Probe("pool", True, f"native btrfs, disk limit: {kind}"))


def open_plain(path: Path, reason: str) -> Pool:
    """A pool of plain directories. `reason`: why it cannot be more. Called twice: the same pool."""
    _bind(path)
    remedy = "Install btrfs-progs and a kernel with btrfs and loop devices, or put the home on btrfs; then start anew."
    detail = f"plain directories: {reason}; disk limits are not enforced"
    return Pool(path, None, PlainTrees(), Probe("pool", False, detail, remedy))


def _bind(path: Path) -> None:
    """Mount a directory on itself, to have flags and propagation of our own."""
    if mounts.is_mount_root(path):
        return
    mounts.mount(os.fspath(path), path, "", mounts.MS_BIND)
    mounts.mount("none", path, "", mounts.MS_BIND | mounts.MS_REMOUNT | _FLAGS)
    mounts.make_shared(path)


def _open_image(path: Path, image: Path, size_bytes: int) -> Pool:
    _make_image(image, size_bytes)
    image = image.resolve()  # as the kernel names it
    try:
        with loops.found(image) as devices:
            if mounts.is_mount_root(path):
                _require_own(path, devices)
            else:
                _mount(path, image, devices)
            for device in devices:
                loops.take_new_size(device)
                loops.release(device)  # it stays while it is mounted; one that a crash left goes
    except OSError as error:
        older = " A pool made under Linux 6.7 or newer needs such a kernel." if error.errno == errno.EINVAL else ""
        raise Refused(f"The pool {image} cannot be mounted: {error}.{older} `dmesg` says more.") from error
    btrfs.grow(path)
    kind = quota.enable(path, full=True) or "none"
    return Pool(path, image, BtrfsTrees(path, kind), _image_probe(image, kind))


def _image_probe(image: Path, kind: str) -> Probe:
    status, below = image.stat(), os.statvfs(image.parent)
    size_mb, missing = status.st_size // _MIB, status.st_size - status.st_blocks * 512
    detail = f"btrfs on {image} ({size_mb} MB), disk limit: {kind}"
    if missing <= below.f_bavail * below.f_frsize:
        return Probe("pool", True, detail)
    return Probe(
        "pool",
        True,
        f"{detail}; the disk below has not room for all of it, new sandboxes are refused before it fills",
        f"Free {missing // _MIB} MB beside {image}, or choose a smaller pool_mb before the first start.",
    )


def _make_image(image: Path, size_bytes: int) -> None:
    if not image.exists():
        unfinished = image.with_name(image.name + ".new")
        unfinished.unlink(missing_ok=True)
        unfinished.touch(mode=0o600)
        if btrfs.is_btrfs(image.parent):
            _run("chattr", "+C", os.fspath(unfinished))  # no copy-on-write below copy-on-write
        os.truncate(unfinished, size_bytes)
        _run("mkfs.btrfs", "--quiet", "--metadata", "single", "--data", "single", os.fspath(unfinished))
        unfinished.rename(image)
    elif image.stat().st_size < size_bytes:  # it grows with the setting, it never shrinks
        os.truncate(image, size_bytes)


def _require_own(path: Path, devices: list[str]) -> None:
    source = [entry for entry in mounts.mounts_under(path) if entry.target == path.resolve()][-1].source
    if source not in devices:
        raise Refused(f"{path} should hold the pool, but {source} is mounted there. Unmount it and start again.")


def _mount(path: Path, image: Path, devices: list[str]) -> None:
    """Mount the image, by a device that is on it already if possible: a copy of an old mount may still use that one."""
    for device in devices:
        with contextlib.suppress(OSError):
            return _mount_device(path, device)
    with loops.attached(image) as device:
        return _mount_device(path, device)


def _mount_device(path: Path, device: str) -> None:
    mounts.mount(device, path, "btrfs", _FLAGS, _OPTIONS)
    mounts.make_shared(path)


def _cannot_btrfs() -> str | None:
    """Why this host cannot have a btrfs image; None if it can, as far as can be told without trying."""
    try:
        _run("mkfs.btrfs", "--version")
    except Refused as error:
        return error.message
    if "btrfs" in Path("/proc/filesystems").read_text().split():
        return None
    with contextlib.suppress(Refused):
        _run("modprobe", "btrfs")
    if "btrfs" in Path("/proc/filesystems").read_text().split():
        return None
    return "this kernel has no btrfs"


def _run(*argv: str) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, timeout=_COMMAND_TIMEOUT_S, check=True)
    except FileNotFoundError as error:
        raise Refused(f"{argv[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise Refused(f"{argv[0]} did not end within {_COMMAND_TIMEOUT_S} s") from error
    except subprocess.CalledProcessError as error:
        raise Refused(f"{argv[0]} failed: {error.stderr.decode(errors='replace').strip()}") from error
    return os.fsdecode(done.stdout)
