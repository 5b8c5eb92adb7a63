"""Extended attributes that an archive keeps: a user's own and POSIX ACLs.

Not `trusted.*` nor `security.*`: they are the host's business (labels, capabilities of programs, overlayfs's notes),
and what a sandbox put there must not come back with the host's authority. They are counted.
"""

import os

from skerry.blobs.limits import damaged
from skerry.blobs.manifest import pack_xattrs, unpack_xattrs

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


def _is_kept(name: str) -> bool:
    return name.startswith("user.") or name in _ACLS
