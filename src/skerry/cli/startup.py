"""`startup`: the shell line that a sandbox is started up with."""

from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find
from skerry.cli.environment import SandboxOption
from skerry.cli.output import Format, OutputOption, data, data_json, hint, members
from skerry.cli.sandboxes import SandboxArgument
from skerry.model.errors import Invalid

if TYPE_CHECKING:
    from skerry.wire.startup import StartupView


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="The shell line that runs when a sandbox is up.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("get")(get)
    group.command("set")(set_line)
    group.command("run")(run)
    app.add_typer(group, name="startup")


def get(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """Show what it is and how its latest run goes; `skerry logs` with its command's id has the output."""
    with client() as server:
        view = find(server, sandbox).startup.get()
    _print(view, output)


def set_line(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[SANDBOX] LINE", help="A sandbox, then a shell line.")
    ] = None,
    sandbox: SandboxOption = None,
    none: Annotated[bool, typer.Option("--none", help="Take it away.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Set it, or take it away. It runs when the sandbox comes up the next time; `startup run` runs it now.

    With the sandbox left out, that of the one in use here.
    """
    said = list(words or [])
    if sandbox is None and len(said) == 2 - none:
        sandbox = said.pop(0)
    if len(said) != 1 - none:
        raise Invalid("Give a sandbox and a shell line in quotes, or --none to take it away.", field="command")
    line = None if none else said[0]
    with client() as server:
        view = find(server, sandbox).startup.set(line)
    _print(view, output)


def run(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """Run it now and print its command's id. An earlier run is killed first. It is not waited for."""
    with client() as server:
        view = find(server, sandbox).startup.run()
    if output is Format.JSON or view.command_id is None:
        _print(view, output)
        return
    data(view.command_id)
    hint(f"Its output: skerry logs -f {view.command_id}")


def _print(view: "StartupView", output: Format) -> None:
    shown = view.model_dump(mode="json")
    if output is Format.JSON:
        data_json(shown)
    else:
        members({name: value for name, value in shown.items() if name != "logs"})
