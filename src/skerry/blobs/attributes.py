"""What entries are like: owners, modes and times, and of the extended attributes a user's own and POSIX ACLs.

Not `trusted.*` nor `security.*`: they are the host's business (labels, capabilities of programs, overlayfs's notes),
and what a sandbox put there must not come back with the host's authority. They are counted.
"""

import os
import stat

from skerry.blobs.limits import damaged
from skerry.blobs.manifest import MODE_BITS, Entry, pack_xattrs, unpack_xattrs

PERMISSIONS = 0o777
_SPECIAL = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX
_OWNER = os.geteuid(), os.getegid()  # of what this process makes
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")


def read_xattrs(fd: int) -> tuple[bytes, int]:
    """What is kept of an open file's attributes, packed, and how many are not."""
    names = os.listxattr(fd)
    if not names:
        return b"", 0
    kept = sorted(name for name in names if _is_kept(name))
    packed = pack_xattrs([(os.fsencode(name), os.getxattr(fd, name)) for name in kept])
    return packed, len(names) - len(kept)


def write_xattrs(fd: int, packed: bytes) -> None:
    """Raises Refused where one of them is none that an archive keeps."""
    for encoded, value in unpack_xattrs(packed):
        name = os.fsdecode(encoded)
        if not _is_kept(name) or "\0" in name:
            raise damaged("the manifest has an attribute that no archive holds")
        os.setxattr(fd, name, value)


def set_attributes(fd: int, entry: Entry) -> None:
    """Give an open file or directory all that its entry tells, whatever it has now. Raises as `write_xattrs`."""
    _own(fd, entry)
    _rest(fd, entry)


def complete(fd: int, entry: Entry) -> os.stat_result:
    """The same for a file that was just made with its permissions, as far as the umask let it: what is right is left.

    Returns its status then.
    """
    if (entry.uid, entry.gid) != _OWNER or entry.mode & _SPECIAL:
        _own(fd, entry)
    _rest(fd, entry)
    status = os.fstat(fd)
    if (status.st_uid, status.st_gid, status.st_mode & MODE_BITS) != (entry.uid, entry.gid, entry.mode):
        _own(fd, entry)
        status = os.fstat(fd)
    return status


def _own(fd: int, entry: Entry) -> None:
    # In this order: a change of owner clears setuid, and the bits must at no moment be another owner's.
    os.fchown(fd, entry.uid, entry.gid)
    os.fchmod(fd, entry.mode)


def _rest(fd: int, entry: Entry) -> None:
    if entry.xattrs:
        write_xattrs(fd, entry.xattrs)
    os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def _is_kept(name: str) -> bool:
    return name.startswith("user.") or name in _ACLS
