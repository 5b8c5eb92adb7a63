"""Trees of a `FakeGuest` as tar streams, by Python's own tar: small trees of files and directories, in memory."""

import io
import tarfile

from skerry.model.errors import GuestError
from skerry.model.files import Archived, ArchiveLimits, Skipped
from skerry.testing.fake_files import FakeFiles, Node, normal

_BLOCK = 512
_NO_FILE = {tarfile.CHRTYPE: "it is a device", tarfile.BLKTYPE: "it is a device", tarfile.FIFOTYPE: "it is a FIFO"}


def pack(files: FakeFiles, path: str, limits: ArchiveLimits) -> tuple[bytes, Archived]:
    """The directory as a tar stream, itself last.

    Raises:
        GuestError: `not_found`, `not_a_directory`, `limit`.
    """
    root = normal(path)
    files.children(root)  # raises when it is no directory
    below = root.rstrip("/") + "/"
    inside = sorted(other for other in files.nodes if other.startswith(below) and other != root)
    if len(inside) > limits.max_entries:
        raise GuestError("limit", f"there are more than {limits.max_entries} entries")
    stream = io.BytesIO()
    skipped: list[Skipped] = []
    size = 0
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for other in inside:
            node = files.nodes[other]
            if len(node.data or b"") > limits.max_bytes - size:
                reason = "it is larger than what is left of the archive's size limit"
                skipped.append(Skipped(other[len(below) :], reason))
                continue
            size += len(node.data or b"")
            _add(archive, other[len(below) :], node)
        _add(archive, ".", files.nodes[root])
    count = len(inside) - len(skipped) + 1
    return stream.getvalue(), Archived(count, size, tuple(skipped), len(skipped))


def _add(archive: tarfile.TarFile, name: str, node: Node) -> None:
    info = tarfile.TarInfo(name)
    info.mode, info.size = node.mode, len(node.data or b"")
    info.type = tarfile.DIRTYPE if node.data is None else tarfile.REGTYPE
    info.mtime = node.mtime_ns / 1_000_000_000
    archive.addfile(info, io.BytesIO(node.data or b""))


def unpack(files: FakeFiles, path: str, stream: bytes, limits: ArchiveLimits) -> Archived:
    """Unpack below a directory. Knows no links: they are skipped, as devices are.

    Raises:
        GuestError: `invalid`, `limit`, `not_a_directory`.
    """
    if path == "/" or normal(path) not in files.nodes:
        files.make_directory(path, parents=True, mode=0o755)
    files.children(path)
    count = size = 0
    skipped: list[Skipped] = []
    try:
        with tarfile.open(fileobj=io.BytesIO(stream), mode="r:") as archive:
            for info in archive:
                if count + len(skipped) >= limits.max_entries or info.size > limits.max_bytes - size:
                    raise GuestError("limit", f"more than may be unpacked; before that {count} entries were unpacked")
                if (reason := _wrong(info) or _taken(files, path, info)) is not None:
                    skipped.append(Skipped(info.name, reason))
                    continue
                reader = archive.extractfile(info)
                data = reader.read() if reader is not None else None
                if data is not None and len(data) < info.size:
                    raise tarfile.ReadError("the archive ends early")
                _place(files, path, info, data)
                count, size = count + 1, size + info.size
            if stream[archive.offset : archive.offset + _BLOCK].strip(b"\0") or archive.offset >= len(stream):
                raise tarfile.ReadError("the archive ends early")
    except tarfile.TarError as error:
        raise GuestError("invalid", f"{error}; before that {count} entries were unpacked") from error
    return Archived(count, size, tuple(skipped), len(skipped))


def _wrong(info: tarfile.TarInfo) -> str | None:
    if info.name.startswith("/"):
        return "its name is absolute"
    if ".." in info.name.split("/"):
        return "its name leads out by .."
    if info.type in _NO_FILE:
        return _NO_FILE[info.type]
    return None if info.isdir() or info.isreg() else "it is of a type that this fake does not know"


def _taken(files: FakeFiles, path: str, info: tarfile.TarInfo) -> str | None:
    there = files.nodes.get(normal(f"{path}/{info.name}"))
    return "a directory stands there" if there is not None and there.data is None and info.isreg() else None


def _place(files: FakeFiles, path: str, info: tarfile.TarInfo, data: bytes | None) -> None:
    target = normal(f"{path}/{info.name}")
    if target == normal(path):
        return
    if data is None:
        files.make_directory(target, parents=True, mode=info.mode & 0o1777)
    else:
        files.put(target, data, info.mode & 0o1777)
    node = files.nodes[target]
    files.nodes[target] = Node(node.data, info.mode & 0o1777, round(info.mtime * 1_000_000_000))
