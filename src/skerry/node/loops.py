"""Loop devices: a file as a block device, gone by itself with the last who uses it. Blocking.

A device's number means nothing while nobody holds it open: it may be another's by the time one acts on it, and several
instances share a host. So everything here acts through a descriptor, checked after it was opened.
"""

import contextlib
import errno
import fcntl
import os
import struct
from collections.abc import Generator
from pathlib import Path

_CLR_FD = 0x4C01
_GET_STATUS64 = 0x4C05
_SET_CAPACITY = 0x4C07
_CONFIGURE = 0x4C0A
_CTL_GET_FREE = 0x4C82
_AUTOCLEAR = 4
_DIRECT_IO = 16
_LOOP_MAJOR = 7
_ATTEMPTS = 100  # others take free devices, too


@contextlib.contextmanager
def attached(image: Path) -> Generator[str]:
    """A new device on `image`, which stays for as long as it is held here, mounted or open.

    Raises:
        OSError: This host gives no loop device.
    """
    backing = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, fd = _configure(backing)
    finally:
        os.close(backing)
    try:
        yield device
    finally:
        os.close(fd)


def _configure(backing: int) -> tuple[str, int]:
    flags = _AUTOCLEAR | _DIRECT_IO
    for _ in range(_ATTEMPTS):
        device = _free_device()
        fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        # struct loop_config: the file, a block size of the kernel's choice, a loop_info64 with nothing but flags
        config = struct.pack("=II52xI176x64x", backing, 0, flags)
        try:
            fcntl.ioctl(fd, _CONFIGURE, bytearray(config))
        except OSError as error:
            os.close(fd)
            if error.errno == errno.EINVAL and flags & _DIRECT_IO:
                flags &= ~_DIRECT_IO  # the file system below knows none
            elif error.errno != errno.EBUSY:
                raise
        else:
            return device, fd
    raise OSError(errno.EBUSY, "no loop device could be had: others were faster each time")


def _free_device() -> str:
    with open("/dev/loop-control", "rb+", buffering=0) as control:  # noqa: PTH123 - a device
        number: int = fcntl.ioctl(control, _CTL_GET_FREE)
    device = f"/dev/loop{number}"
    _make_node(device)
    return device


def _make_node(device: str) -> None:
    if not Path(device).exists():  # a /dev that no udev fills
        number = int(device.removeprefix("/dev/loop"))
        with contextlib.suppress(FileExistsError):
            os.mknod(device, 0o60660, os.makedev(_LOOP_MAJOR, number))


@contextlib.contextmanager
def found(image: Path) -> Generator[list[str]]:
    """The devices that are on `image` already, held so that they stay; those on a deleted file of its name go.

    Devices are the whole kernel's and so are their names of files: in another mount namespace, a container's say, the
    same path is another file. So what counts is the file's own identity.
    """
    own = image.stat()
    with contextlib.ExitStack() as stack:
        devices: list[str] = []
        for directory in sorted(Path("/sys/block").glob("loop*/loop")):
            device = f"/dev/{directory.parent.name}"
            if _backing_file(directory) not in (os.fspath(image), f"{image} (deleted)"):
                continue
            fd = _open(device)
            stack.callback(os.close, fd)
            # Asked through the descriptor: now it cannot become another's.
            where, number = _identity(fd)
            if (where, number) == (own.st_dev, own.st_ino):
                devices.append(device)
            elif where == own.st_dev and _backing_file(directory) == f"{image} (deleted)":
                _release(fd)
        yield devices


def _identity(fd: int) -> tuple[int, int]:
    """Device and inode of the file behind; zeros when it has been let go of."""
    # struct loop_info64 begins with them
    info = bytearray(232)
    try:
        fcntl.ioctl(fd, _GET_STATUS64, info)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
    where, number = struct.unpack_from("=QQ", info)
    return where, number


def _open(device: str) -> int:
    _make_node(device)
    return os.open(device, os.O_RDWR | os.O_CLOEXEC)


def _backing_file(directory: Path) -> str | None:
    try:
        return os.fsdecode((directory / "backing_file").read_bytes()).removesuffix("\n")
    except OSError:  # detached meanwhile
        return None


def release(device: str) -> None:
    """Let a device go with its last user. The caller holds it."""
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        _release(fd)
    finally:
        os.close(fd)


def _release(fd: int) -> None:
    try:
        fcntl.ioctl(fd, _CLR_FD)
    except OSError as error:
        if error.errno != errno.ENXIO:  # gone already
            raise


def take_new_size(device: str) -> None:
    """Have the device as large as its file, which has grown. The caller holds it, or has it mounted."""
    fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _SET_CAPACITY)
    finally:
        os.close(fd)
