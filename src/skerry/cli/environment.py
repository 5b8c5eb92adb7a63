"""`env`: the variables that a sandbox's commands find from now on."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find, in_use, matching
from skerry.cli.output import Format, OutputOption, data, data_json
from skerry.cli.sandboxes import SandboxArgument, parse_pairs
from skerry.model.errors import Invalid

if TYPE_CHECKING:
    from skerry.sdk import Skerry

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
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SANDBOX] NAME[=VALUE]...", help="A sandbox, then NAME=VALUE, or NAME alone: its value here."
        ),
    ],
    sandbox: SandboxOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Set variables; the others stay. With the sandbox left out, the one in use here.

    A secret is better given by NAME alone: every process of a machine can read arguments.
    """
    with client() as server:
        if sandbox is None:
            sandbox, words = _sandbox_first(server, words)
        given = parse_pairs([_filled(pair) for pair in words], "env")
        box = find(server, sandbox).refresh()
        box.set_env({**box.info.env, **given})
        names = {name: box.info.env[name] for name in given}
    _print(names if output is Format.JSON else dict.fromkeys(names, ""), output, names_alone=True)


def unset(
    words: Annotated[
        list[str], typer.Argument(metavar="[SANDBOX] NAME...", help="A sandbox, then names of variables.")
    ],
    sandbox: SandboxOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Take variables away; what is not there is none of them already."""
    with client() as server:
        if sandbox is None and len(words) > 1 and matching(server, words[0]):
            if in_use() and words[0] in find(server, None).refresh().info.env:
                raise _two_meanings(words[0])
            sandbox, words = words[0], words[1:]
        box = find(server, sandbox).refresh()
        gone = {name: value for name, value in box.info.env.items() if name in words}
        box.set_env({name: value for name, value in box.info.env.items() if name not in words})
    _print(gone, output, names_alone=True)


def _sandbox_first(server: "Skerry", words: list[str]) -> tuple[str | None, list[str]]:
    """The sandbox that the first word names, and the rest; or None and all of them.

    Raises:
        Invalid: It may be meant as a variable, too: nobody's secret is given to a sandbox by a guess.
    """
    word = words[0]
    if "=" in word or len(words) == 1:
        return None, words
    if word not in os.environ:
        return word, words[1:]
    if matching(server, word):
        raise _two_meanings(word)
    return None, words


def _two_meanings(word: str) -> Invalid:
    return Invalid(
        f"'{word}' is a sandbox and a variable. For the sandbox say -s {word}, for the one in use -s and its id.",
        field="sandbox",
    )


def _filled(pair: str) -> str:
    if "=" in pair:
        return pair
    if pair not in os.environ:
        raise Invalid(
            f"'{pair}' is not NAME=VALUE, and no variable of this name is set here. Say: skerry env set SANDBOX"
            " NAME=VALUE",
            field="env",
        )
    return f"{pair}={os.environ[pair]}"


def _print(held: dict[str, str], output: Format, *, names_alone: bool = False) -> None:
    if output is Format.JSON:
        data_json(held)
        return
    for name, value in sorted(held.items()):
        data(name if names_alone else f"{name}={value}")
