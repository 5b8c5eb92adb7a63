"""`template ls`, `get`, `build`: what sandboxes start from."""

from typing import Annotated

import typer

from skerry.cli.completion import complete_template
from skerry.cli.connection import client
from skerry.cli.output import Format, OutputOption, data, data_json, members, progress, table

NameArgument = Annotated[str, typer.Argument(help="The template's name.", autocompletion=complete_template)]


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Templates: what sandboxes start from.", no_args_is_help=True, rich_markup_mode=None)
    group.command("ls")(list_templates)
    group.command("get")(get)
    group.command("build")(build)
    app.add_typer(group, name="template")


def list_templates(output: OutputOption = Format.TEXT) -> None:
    """List all that sandboxes can be made from, built or not."""
    with client() as server:
        found = server.templates.list()
    if output is Format.JSON:
        data_json([one.model_dump(mode="json") for one in found])
        return
    rows = [[one.name, one.status, f"{one.size_bytes / 1e6:.0f} MB", one.description] for one in found]
    table(["NAME", "STATUS", "SIZE", "DESCRIPTION"], rows)


def get(name: NameArgument, output: OutputOption = Format.TEXT) -> None:
    """Show one template."""
    with client() as server:
        shown = server.templates.get(name).model_dump(mode="json")
    if output is Format.JSON:
        data_json(shown)
    else:
        members(shown)


def build(name: NameArgument, output: OutputOption = Format.TEXT) -> None:
    """Build a template, or follow the build that runs; what it does is told on stderr. Built already: nothing to do."""
    with client() as server:
        tell = progress()
        for line in server.templates.build(name):
            tell(line.fraction, line.line)
        built = server.templates.get(name)
    if output is Format.JSON:
        data_json(built.model_dump(mode="json"))
    else:
        data(f"{built.name} {built.status}")
