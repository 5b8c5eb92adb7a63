"""`cp`: files and directories between this machine and a sandbox. What comes from inside is checked."""

from pathlib import Path
from posixpath import basename, normpath
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.completion import complete_place
from skerry.cli.connection import client, find
from skerry.cli.output import Format, OutputOption, data, data_json, hint, printable
from skerry.cli.places import place
from skerry.cli.progress import Advance, bar, ready
from skerry.model.errors import Invalid, NotFound, SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Sandbox, Transfer

PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="[SANDBOX:]PATH", help="Here, or inside; :PATH is in the one in use.", autocompletion=complete_place
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(cp)


def cp(
    source: PlaceArgument,
    target: PlaceArgument,
    # Every directory is copied with what is in it; the usual letter does no harm.
    recursive: Annotated[bool, typer.Option("-r", "-R", "--recursive", hidden=True)] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Copy a file or a directory into a sandbox or out of it; files of the same name are replaced, nothing is removed.

    Into a directory that is there, or a target that ends in /, it comes under its own name. A symlink given as SOURCE
    here is followed. Of a directory come modes, times, empty directories and symlinks as they are; devices, pipes,
    sockets and, on the way out, symlinks to the outside are left out, each with a line on stderr.
    """
    from_box, from_path = place(source)
    to_box, to_path = place(target)
    if (from_box is None) == (to_box is None):
        raise Invalid("Give one local path and one SANDBOX:PATH, such as: skerry cp data.csv mybox:/workspace/")
    with client() as server, bar(output, "copy") as advance:
        box = ready(server, find(server, (to_box if from_box is None else from_box) or None), output)
        if to_box is not None:
            done = upload(box, Path(from_path), to_path or "/workspace/", advance)
        else:
            done = _download(box, from_path or "/workspace", Path(to_path), advance)
    for one in done.skipped:
        hint(f"skerry: left out {one.path}: {one.reason}")
    if done.skipped_count > len(done.skipped):
        hint(f"skerry: left out {done.skipped_count - len(done.skipped)} more")
    if output is Format.JSON:
        data_json({"entries": done.count, "bytes": done.size_bytes, "left_out": done.skipped_count})
    else:
        data(f"{done.count} {'entry' if done.count == 1 else 'entries'}, {done.size_bytes} bytes")


def upload(box: "Sandbox", source: Path, target: str, advance: Advance | None = None) -> "Transfer":
    """Copy a file or directory of this machine in. What came over.

    Raises:
        NotFound: There is nothing of this name here.
        Invalid: It is neither a file nor a directory.
    """
    from skerry.sdk.transfers import Transfer

    if not source.exists():
        raise NotFound(f"There is no {source} on this machine.", field="source")
    if target.endswith("/") or _is_directory(box, target):
        target = f"{target.rstrip('/')}/{source.name or source.resolve().name}"
    if source.is_dir():
        return box.files.upload_dir(source.resolve(), target, progress=advance)
    if not source.is_file():
        raise Invalid(f"{source} is neither a file nor a directory.", field="source")
    return Transfer(1, box.files.upload(source, target, progress=advance).size_bytes)


def _download(box: "Sandbox", source: str, target: Path, advance: Advance | None) -> "Transfer":
    from skerry.sdk.transfers import Transfer

    entry = box.files.stat(source)
    if target.is_dir() or str(target).endswith("/"):
        target = target / _own_name(source)
    if entry.type == "dir":
        return box.files.download_dir(source, target, progress=advance)
    if entry.type != "file":
        raise Invalid(f"{source} is a {printable(entry.type)}, no file or directory.", field="source")
    if not target.parent.is_dir():
        raise Invalid(f"There is no directory {target.parent} on this machine. Make it first.", field="target")
    return Transfer(1, box.files.download(source, target, progress=advance))


def _own_name(source: str) -> str:
    """What a copy is called: as it was asked for. The sandbox's word for it could be that of any file here.

    Raises:
        Invalid: It has none.
    """
    name = basename(normpath(f"/workspace/{source}" if not source.startswith("/") else source))
    if not name or "\0" in name:
        raise Invalid(f"{source} has no name of its own. Give the copy one.", field="target")
    return name


def _is_directory(box: "Sandbox", path: str) -> bool:
    try:
        return box.files.stat(path).type == "dir"
    except SkerryError:
        return False
