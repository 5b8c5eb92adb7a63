"""`session`: shell sessions, in which directory and exported variables persist from one command to the next."""

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find
from skerry.cli.environment import SandboxOption
from skerry.cli.output import Format, OutputOption, data, data_json, table
from skerry.cli.running import TimeoutOption, own_failures
from skerry.cli.sandboxes import SandboxArgument
from skerry.cli.words import PASS_ON, WithCommand, split
from skerry.model.errors import Invalid, NotFound

if TYPE_CHECKING:
    from skerry.sdk import Sandbox, Shell


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        help="Sessions, in which directory and variables persist.", no_args_is_help=True, rich_markup_mode=None
    )
    group.command("new")(new)
    group.command("exec", cls=WithCommand, context_settings=PASS_ON)(execute)
    group.command("ls")(list_sessions)
    group.command("rm")(remove)
    app.add_typer(group, name="session")


def new(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """Make a session and print its id."""
    with client() as server:
        made = find(server, sandbox).shell()
    if output is Format.JSON:
        data_json(_as_json(made))
    else:
        data(made.id)


def execute(
    words: Annotated[
        list[str],
        typer.Argument(metavar="SESSION -- COMMAND...", help="One word is a shell line, several are a program."),
    ],
    sandbox: SandboxOption = None,
    timeout: TimeoutOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Run a command in a session; its output, shown at its end, and its exit code are this program's.

    One at a time. An interrupt here leaves it running to its deadline; `session rm` kills it.
    """
    from skerry.cli.foreground import ended

    with own_failures(output), client() as server:
        session, command = split(words)
        if session is None:
            raise Invalid("Name a session, such as: skerry session exec SESSION -- cd /tmp", field="session")
        line = command[0] if len(command) == 1 else shlex.join(command)
        code = ended(_session(find(server, sandbox), session).run(line, timeout_s=timeout), output)
    raise typer.Exit(code)


def list_sessions(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """List a sandbox's sessions, oldest first."""
    with client() as server:
        found = find(server, sandbox).shells()
    if output is Format.JSON:
        data_json([_as_json(one) for one in found])
    else:
        table(["ID", "DIRECTORY"], [[one.id, one.cwd] for one in found])


def remove(
    session: Annotated[str, typer.Argument(help="Its id.")],
    sandbox: SandboxOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """End a session; a command that it runs is killed."""
    with client() as server:
        _session(find(server, sandbox), session).end()
    if output is Format.JSON:
        data_json({"ended": session})
    else:
        data(session)


def _session(box: "Sandbox", session_id: str) -> "Shell":
    for one in box.shells():
        if one.id == session_id:
            return one
    raise NotFound(f"{box.id} has no session '{session_id}'. `skerry session ls` lists them.", field="session")


def _as_json(session: "Shell") -> dict[str, object]:
    return {"id": session.id, "cwd": session.cwd}
