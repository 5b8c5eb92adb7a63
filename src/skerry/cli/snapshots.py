"""`snapshot create`, `ls`, `get`, `rm`: captures of sandboxes, to make others from."""

from typing import Annotated

import typer

from skerry.cli.completion import complete_snapshot
from skerry.cli.connection import client, find
from skerry.cli.interrupts import telling
from skerry.cli.output import Format, OutputOption, data, data_json, failure, hint, members, table
from skerry.cli.sandboxes import SandboxArgument, age, pasted
from skerry.model.errors import SkerryError
from skerry.model.ids import is_id

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
    with client() as server, telling("It may have been taken all the same: `skerry snapshot ls`"):
        made = find(server, sandbox).snapshot(name)
    if output is Format.JSON:
        data_json(made.info.model_dump(mode="json"))
    else:
        data(made.id)
        hint(f"Next: skerry create --from-snapshot {pasted(made.name, made.id)}")


def list_snapshots(
    name: Annotated[str | None, typer.Option("-n", "--name", help="Only those of this name.")] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--of", metavar="SANDBOX", help="Only those of this sandbox; one that is gone is named by its id."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Ids alone.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """List your snapshots, newest first."""
    with client() as server:
        # Whose sandbox is gone, its id alone still tells.
        of = source if source is None or is_id(source, "sbx") else find(server, source, ended_too=True).id
        found = server.snapshots.list(name=name, source_sandbox_id=of).all()
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
    table(["ID", "NAME", "TEMPLATE", "SIZE", "STORED", "AGE", "OF"], rows, ("OF", "TEMPLATE", "STORED", "AGE"))
    for one in found:
        if one.info.detail:
            hint(f"{one.id}: {one.info.detail}")


def get(snapshot: SnapshotArgument, output: OutputOption = Format.TEXT) -> None:
    """Show one snapshot."""
    with client() as server:
        shown = server.snapshots.find(snapshot).info.model_dump(mode="json")
    if output is Format.JSON:
        data_json(shown)
    else:
        members(shown)


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
                failure(error, output)
                failed = True
    if output is Format.JSON:
        data_json({"deleted": gone})
    else:
        for one in gone:
            data(one)
    if failed:
        raise typer.Exit(1)
