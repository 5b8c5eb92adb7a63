"""`env`: the variables that a sandbox's commands find from now on."""

from typing import Annotated

import typer

from skerry.cli.connection import client, find
from skerry.cli.output import Format, OutputOption, data, data_json
from skerry.cli.sandboxes import SandboxArgument, parse_pairs
from skerry.model.errors import Invalid

SandboxOption = Annotated[
    str | None, typer.Option("-s", "--sandbox", help="Id, name, label. Left out: the one in use here.")
]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Variables of a sandbox's commands, from now on.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("ls")(show)
    group.command("set")(set_some)
    group.command("unset")(unset)
    app.add_typer(group, name="env")


def show(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """Show the variables with their values."""
    with client() as server:
        held = find(server, sandbox).refresh().info.env
    _print(held, output)


def set_some(
    pairs: Annotated[list[str], typer.Argument(help="NAME=VALUE, or NAME alone: its value here.")],
    sandbox: SandboxOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Set variables; the others stay.

    A secret is better given by NAME alone: every process of a machine can read arguments.
    """
    given = parse_pairs([_filled(pair) for pair in pairs], "env")
    with client() as server:
        box = find(server, sandbox).refresh()
        box.set_env({**box.info.env, **given})
        names = {name: box.info.env[name] for name in given}
    _print(names if output is Format.JSON else dict.fromkeys(names, ""), output, names_alone=True)


def unset(
    names: Annotated[list[str], typer.Argument(help="Names of variables.")],
    sandbox: SandboxOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Take variables away; what is not there is none of them already."""
    with client() as server:
        box = find(server, sandbox).refresh()
        gone = {name: value for name, value in box.info.env.items() if name in names}
        box.set_env({name: value for name, value in box.info.env.items() if name not in names})
    _print(gone, output, names_alone=True)


def _filled(pair: str) -> str:
    import os

    if "=" in pair:
        return pair
    if pair not in os.environ:
        raise Invalid(f"'{pair}' is not NAME=VALUE, and no variable of this name is set here.", field="env")
    return f"{pair}={os.environ[pair]}"


def _print(held: dict[str, str], output: Format, *, names_alone: bool = False) -> None:
    if output is Format.JSON:
        data_json(held)
        return
    for name, value in sorted(held.items()):
        data(name if names_alone else f"{name}={value}")
