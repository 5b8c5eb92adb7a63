"""`snapshot create`, `ls`, `get`, `rm`: captures of sandboxes, to make others from."""

from typing import Annotated

import typer

from skerry.cli.completion import complete_snapshot
from skerry.cli.connection import client, find
from skerry.cli.output import Format, OutputOption, data, data_json, failure, hint, table
from skerry.cli.sandboxes import SandboxArgument, age
from skerry.model.errors import SkerryError

SnapshotArgument = Annotated[
    str, typer.Argument(help="Id, name or beginning of the id.", autocompletion=complete_snapshot)
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Captures of a sandbox's files and configuration.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("create")(create)
    group.command("ls")(list_snapshots)
    group.command("get")(get)
    group.command("rm")(remove)
    app.add_typer(group, name="snapshot")


def create(
    sandbox: SandboxArgument = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="A name for people; several may have it.")] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Keep a sandbox's files and configuration as they are now, and print the snapshot's id. What runs goes on.

    `skerry create --from-snapshot` makes sandboxes from it.
    """
    with client() as server:
        made = find(server, sandbox).snapshot(name)
    if output is Format.JSON:
        data_json(made.info.model_dump(mode="json"))
    else:
        data(made.id)
        hint(f"Next: skerry create --from-snapshot {made.name or made.id}")


def list_snapshots(
    name: Annotated[str | None, typer.Option("-n", "--name", help="Only those of this name.")] = None,
    source: Annotated[
        str | None, typer.Option("--of", metavar="SANDBOX", help="Only those of this sandbox, by its id, gone or not.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Ids alone.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """List your snapshots, newest first."""
    with client() as server:
        found = server.snapshots.list(name=name, source_sandbox_id=source).all()
    if output is Format.JSON:
        data_json([one.info.model_dump(mode="json") for one in found])
        return
    if quiet:
        for one in found:
            data(one.id)
        return
    rows = [
        [
            one.id,
            one.name or "-",
            one.info.template,
            f"{one.size_bytes / 1e6:.1f} MB" if one.size_bytes or one.archived else "-",
            "-" if one.info.stored_bytes is None else f"{one.info.stored_bytes / 1e6:.1f} MB",
            age(one.created_at),
            one.source_sandbox_id,
        ]
        for one in found
    ]
    table(["ID", "NAME", "TEMPLATE", "SIZE", "STORED", "AGE", "OF"], rows)


def get(snapshot: SnapshotArgument, output: OutputOption = Format.TEXT) -> None:
    """Show one snapshot."""
    with client() as server:
        shown = server.snapshots.find(snapshot).info.model_dump(mode="json")
    if output is Format.JSON:
        data_json(shown)
        return
    for name, value in shown.items():
        if value not in (None, "", {}, []):
            data(f"{name:<20} {value}")


def remove(
    snapshots: Annotated[
        list[str], typer.Argument(help="Ids, names or beginnings of ids.", autocompletion=complete_snapshot)
    ],
    output: OutputOption = Format.TEXT,
) -> None:
    """Delete snapshots. Sandboxes that were made from them stay as they are."""
    gone: list[str] = []
    failed = False
    with client() as server:
        for word in snapshots:
            try:
                one = server.snapshots.find(word)
                one.delete()
                gone.append(one.id)
            except SkerryError as error:
                failure(error)
                failed = True
    if output is Format.JSON:
        data_json({"deleted": gone})
    else:
        for one in gone:
            data(one)
    if failed:
        raise typer.Exit(1)
