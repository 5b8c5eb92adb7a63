"""`cp`: files and directories between this machine and a sandbox. Names from inside are hostile and checked."""

import base64
import os
import secrets
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from skerry.cli.completion import complete_place
from skerry.cli.connection import client, find
from skerry.cli.output import Format, OutputOption, console, data, data_json, hint, printable
from skerry.model.errors import Invalid, NotFound, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import FileEntry, Sandbox

CHUNK_BYTES = 1 << 20
DEEPEST = 128


class Progress(Protocol):
    def __call__(self, advanced: int) -> None: ...


@dataclass(slots=True)
class Copied:
    """What was copied so far."""

    files: int = 0
    size_bytes: int = 0


def register(app: typer.Typer) -> None:
    app.command()(cp)


def cp(
    source: Annotated[str, typer.Argument(help="A local path, or SANDBOX:PATH.", autocompletion=complete_place)],
    target: Annotated[str, typer.Argument(help="A local path, or SANDBOX:PATH.", autocompletion=complete_place)],
    output: OutputOption = Format.TEXT,
) -> None:
    """Copy a file or a directory into a sandbox or out of it; files of the same name are replaced.

    A symlink given as SOURCE is followed. Below a directory, symlinks, sockets, pipes and devices are left out, each
    with a line on stderr. A symlink at TARGET is followed inside a sandbox; on this machine the file takes its place.
    Into a sandbox a file brings its permission bits along; out of one it gets this machine's default. Owners, times
    and holes are not kept.
    """
    from_box, from_path = _place(source)
    to_box, to_path = _place(target)
    if (from_box is None) == (to_box is None):
        raise Invalid("Give one local path and one SANDBOX:PATH, such as: skerry cp data.csv mybox:/workspace/")
    copied = Copied()
    with client() as server, _progress() as advance:
        if to_box is not None:
            _upload(find(server, to_box or None), Path(from_path), to_path, copied, advance)
        elif from_box is not None:
            _download(find(server, from_box or None), from_path, Path(to_path), copied, advance)
    if output is Format.JSON:
        data_json({"files": copied.files, "bytes": copied.size_bytes})
    else:
        data(f"{copied.files} file{'s' if copied.files != 1 else ''}, {copied.size_bytes} bytes")


def upload(box: "Sandbox", source: Path, target: str) -> Copied:
    """Copy a file or directory of this machine in, without a bar. What was copied."""
    copied = Copied()
    _upload(box, source, target, copied, lambda advanced: None)
    return copied


def _place(word: str) -> tuple[str | None, str]:
    """The sandbox (None: this machine; empty: the one in use here) and the path. `/…` and `.…` are always local."""
    box, colon, path = word.partition(":")
    if not colon or "/" in box or box in (".", ".."):
        return None, word
    return box, path or "/workspace/"


def _upload(box: "Sandbox", source: Path, target: str, copied: Copied, advance: Progress) -> None:
    if not source.exists():
        raise NotFound(f"There is no {source} on this machine.", field="source")
    if target.endswith("/") or _is_directory(box, target):
        target = f"{target.rstrip('/')}/{source.name or source.resolve().name}"
    if not source.is_dir():
        _upload_file(box, source, target, copied, advance)
        return
    box.files.mkdir(target)
    for directory, names, files in os.walk(source, onerror=_raise):
        inside = target + "".join(f"/{part}" for part in Path(directory).relative_to(source).parts)
        for name in sorted(names):
            path = Path(directory) / name
            if path.is_symlink():
                hint(f"skerry: left out {path}: a symlink")
            else:
                box.files.mkdir(f"{inside}/{name}")
        for name in sorted(files):
            path = Path(directory) / name
            if path.is_symlink() or not path.is_file():
                hint(f"skerry: left out {path}: not a regular file")
                continue
            _upload_file(box, path, f"{inside}/{name}", copied, advance)


def _raise(error: OSError) -> None:
    raise error


def _upload_file(box: "Sandbox", source: Path, target: str, copied: Copied, advance: Progress) -> None:
    mode = f"{source.stat().st_mode & 0o777:04o}"

    def chunks() -> Iterator[bytes]:
        with source.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk
                copied.size_bytes += len(chunk)
                advance(len(chunk))

    box.files.write_stream(target, chunks(), mode=mode)
    copied.files += 1


def _download(box: "Sandbox", source: str, target: Path, copied: Copied, advance: Progress) -> None:
    entry = box.files.stat(source)
    if target.is_dir() or str(target).endswith("/"):
        target = target / _safe_name(entry)
    if entry.type == "dir":
        _download_tree(box, source.rstrip("/"), target, copied, advance, depth=0)
    elif entry.type == "file":
        _download_file(box, source, target, copied, advance)
    else:
        raise Invalid(f"{source} is a {entry.type}, no file or directory.", field="source")


def _download_tree(box: "Sandbox", source: str, target: Path, copied: Copied, advance: Progress, *, depth: int) -> None:
    if depth > DEEPEST:
        raise Invalid(f"{source} lies more than {DEEPEST} directories deep.", field="source")
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(box.files.list(source or "/"), key=lambda one: one.name):
        name = _safe_name(entry)
        if entry.type == "dir":
            _download_tree(box, f"{source}/{name}", target / name, copied, advance, depth=depth + 1)
        elif entry.type == "file":
            _download_file(box, f"{source}/{name}", target / name, copied, advance)
        else:
            hint(f"skerry: left out {source}/{printable(name)}: a {entry.type}")


def _download_file(box: "Sandbox", source: str, target: Path, copied: Copied, advance: Progress) -> None:
    """Into a neighbour first, so that a broken copy never stands under the file's name."""
    if not target.parent.is_dir():
        raise Invalid(f"There is no directory {target.parent} on this machine. Make it first.", field="target")
    if target.exists() and not target.is_file():
        raise Invalid(f"{target} is no regular file, and is not replaced. Copy to a file, or to a directory.")
    part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")
    try:
        # A new file, never through a symlink that a part copied earlier could have left.
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666)
        with os.fdopen(handle, "wb", buffering=0) as file, box.files.read_stream(source) as chunks:
            for chunk in chunks:
                file.write(chunk)
                copied.size_bytes += len(chunk)
                advance(len(chunk))
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    copied.files += 1


def _safe_name(entry: "FileEntry") -> str:
    """A name from inside as a name here. Raises Invalid for one that would lead elsewhere."""
    name = os.fsdecode(base64.b64decode(entry.name_base64)) if entry.name_base64 else entry.name
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise Invalid(f"The sandbox told a name that is no name: {name!r}.")
    return name


def _is_directory(box: "Sandbox", path: str) -> bool:
    try:
        return box.files.stat(path).type == "dir"
    except SkerryError:
        return False


@contextmanager
def _progress() -> Generator[Progress]:
    if not sys.stderr.isatty():
        yield lambda advanced: None
        return
    from rich.progress import DownloadColumn, SpinnerColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    with Bar(SpinnerColumn(), DownloadColumn(), TransferSpeedColumn(), console=console(), transient=True) as bar:
        task = bar.add_task("copy", total=None)
        yield lambda advanced: bar.advance(task, advanced)
