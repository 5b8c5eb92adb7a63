"""`files`: a sandbox's files by SANDBOX:PATH, or :PATH in the sandbox that is in use here."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.completion import complete_place
from skerry.cli.connection import client, find
from skerry.cli.foreground import writer
from skerry.cli.output import Format, OutputOption, ReaderGone, data, data_json, table
from skerry.cli.places import place
from skerry.model.errors import Invalid

if TYPE_CHECKING:
    from skerry.sdk import FileEntry, Sandbox

PlaceArgument = Annotated[
    str,
    typer.Argument(metavar="[SANDBOX]:PATH", help="Relative paths start at /workspace.", autocompletion=complete_place),
]
PlacesArgument = Annotated[list[str], typer.Argument(metavar="[SANDBOX]:PATH...", autocompletion=complete_place)]
MarkOption = Annotated[bool, typer.Option("-r", "--recursive", help="Directories with all that is in them.")]
_KINDS = {"dir": "d", "symlink": "l", "fifo": "p", "socket": "s", "char": "c", "block": "b"}


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Files in a sandbox, by SANDBOX:PATH.", no_args_is_help=True, rich_markup_mode=None)
    group.command("ls")(list_files)
    group.command()(cat)
    group.command()(stat)
    group.command()(mkdir)
    group.command()(touch)
    group.command()(mv)
    group.command("rm")(remove)
    group.command()(watch)
    app.add_typer(group, name="files")


def list_files(
    where: Annotated[
        str,
        typer.Argument(metavar="[SANDBOX][:PATH]", help="Left out: /workspace.", autocompletion=complete_place),
    ] = ":",
    output: OutputOption = Format.TEXT,
) -> None:
    """List a directory."""
    with _at(where if ":" in where else f"{where}:") as (box, path):
        found = sorted(box.files.list(path or "/workspace"), key=lambda entry: entry.name)
    if output is Format.JSON:
        data_json([entry.model_dump(mode="json") for entry in found])
        return
    rows = [
        [
            f"{_KINDS.get(one.type, '-')}{one.mode[-4:]}",
            f"{one.uid}:{one.gid}",
            str(one.size_bytes),
            one.modified_at,
            one.name + (f" -> {one.target}" if one.target is not None else ""),
        ]
        for one in found
    ]
    table(["MODE", "OWNER", "BYTES", "MODIFIED", "NAME"], rows)


def cat(
    places: PlacesArgument,
) -> None:
    """Write files to standard output, bytes as they are."""
    write = writer(1)
    for word in places:
        with _at(word) as (box, path), box.files.read_stream(path) as chunks:
            for chunk in chunks:
                write(chunk)


def stat(where: PlaceArgument, output: OutputOption = Format.TEXT) -> None:
    """Show what is told of one entry."""
    with _at(where) as (box, path):
        entry = box.files.stat(path)
    _show(entry, output)


def mkdir(
    where: PlaceArgument,
    parents: Annotated[bool, typer.Option("-p/-P", "--parents/--no-parents", help="Those above it, too.")] = True,
    mode: Annotated[str, typer.Option("-m", "--mode", help="Octal.")] = "0755",
    output: OutputOption = Format.TEXT,
) -> None:
    """Make a directory; with parents, which is the default, one that is there is a success."""
    with _at(where) as (box, path):
        entry = box.files.mkdir(path, parents=parents, mode=mode)
    _made(entry, output)


def touch(
    where: PlaceArgument,
    mode: Annotated[str | None, typer.Option("-m", "--mode", help="Octal.")] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Set a file's time to now, or make an empty file."""
    with _at(where) as (box, path):
        entry = box.files.touch(path, mode=mode)
    _made(entry, output)


def mv(
    source: PlaceArgument,
    target: Annotated[
        str, typer.Argument(metavar="[SANDBOX:]PATH", help="In the same sandbox.", autocompletion=complete_place)
    ],
    overwrite: Annotated[bool, typer.Option("--overwrite/--no-overwrite", help="Replace a file there.")] = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Rename a file or directory within its sandbox."""
    named, to = place(target)
    with client() as server:
        word, path = _place(source)
        box = find(server, word)
        if named and find(server, named).id != box.id:
            raise Invalid(
                f"'{target}' is in another sandbox, and `mv` renames within one. From one to another: `cp` it out, then"
                " `cp` it in.",
                field="to",
            )
        entry = box.files.move(path, to, overwrite=overwrite)
    _made(entry, output)


def remove(
    places: PlacesArgument,
    recursive: MarkOption = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Remove files, symlinks themselves, empty directories; with -r trees."""
    gone: list[str] = []
    for word in places:
        with _at(word) as (box, path):
            box.files.remove(path, recursive=recursive)
        gone.append(word)
    if output is Format.JSON:
        data_json({"removed": gone})
        return
    for word in gone:
        data(word)


def watch(
    where: PlaceArgument,
    recursive: MarkOption = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Tell changes in a directory as they come, until interrupted. With -o json one object a line."""
    import json

    with _at(where) as (box, path), box.files.watch(path or "/workspace", recursive=recursive) as changes:
        try:
            for change in changes:
                told = {"kind": change.kind, "path": change.path}
                data(json.dumps(told) if output is Format.JSON else f"{change.kind:<10} {change.path}")
                sys.stdout.flush()
        except BrokenPipeError as error:
            raise ReaderGone from error


@contextmanager
def _at(word: str) -> "Generator[tuple[Sandbox, str]]":
    named, path = _place(word)
    with client() as server:
        yield find(server, named), path


def _place(word: str) -> tuple[str | None, str]:
    named, path = place(word)
    if named is None:
        raise Invalid(f"'{word}' is no place in a sandbox: say SANDBOX:PATH, or :PATH for the one in use here.")
    return named or None, path


def _made(entry: "FileEntry", output: Format) -> None:
    if output is Format.JSON:
        data_json(entry.model_dump(mode="json"))
    else:
        data(entry.path)


def _show(entry: "FileEntry", output: Format) -> None:
    shown = entry.model_dump(mode="json")
    if output is Format.JSON:
        data_json(shown)
        return
    for name, value in shown.items():
        if value is not None:
            data(f"{name:<14} {value}")
