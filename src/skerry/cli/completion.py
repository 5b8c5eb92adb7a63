"""Shell completion: the script for a shell, and sandboxes' names as words. Says nothing when it cannot help.

A shell may evaluate what it is given, so that only words of harmless characters are offered; others by their id.
"""

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.output import data

if TYPE_CHECKING:
    from collections.abc import Callable

    from skerry.sdk import Skerry

ANSWER_S = 2.0
_HARMLESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
VARIABLE = "_SKERRY_COMPLETE"


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def register(app: typer.Typer) -> None:
    app.command()(completion)


def completion(shell: Annotated[Shell, typer.Argument(help="Of this shell.")]) -> None:
    """Print the script that completes commands and sandboxes' names, such as: eval "$(skerry completion bash)" """
    from typer._completion_shared import get_completion_script  # pyright: ignore[reportPrivateUsage]

    for line in get_completion_script(prog_name="skerry", complete_var=VARIABLE, shell=shell.value).splitlines():
        data(line)


def complete_sandbox(incomplete: str) -> list[str]:
    """Names, and ids of those without a name that can be offered."""
    return _offered(incomplete, _sandboxes)


def complete_template(incomplete: str) -> list[str]:
    return _offered(incomplete, lambda server: [one.name for one in server.templates.list()])


def complete_snapshot(incomplete: str) -> list[str]:
    """Names, and ids of those without a name that can be offered."""
    return _offered(incomplete, lambda server: [_word(one.name, one.id) for one in server.snapshots.list()])


def complete_place(incomplete: str) -> list[str]:
    """SANDBOX: of a SANDBOX:PATH; a path here is the shell's own business."""
    if incomplete[:1] in ("/", ".", "~", ":") or ":" in incomplete:
        return []
    return [f"{word}:" for word in complete_sandbox(incomplete)]


def _sandboxes(server: "Skerry") -> list[str]:
    return [_word(box.name, box.id) for box in server.list()]


def _word(name: str | None, id: str) -> str:
    return name if name and _HARMLESS.fullmatch(name) else id


def _offered(incomplete: str, ask: "Callable[[Skerry], list[str]]") -> list[str]:
    from skerry.cli.connection import address
    from skerry.model.errors import SkerryError
    from skerry.sdk import Skerry

    try:
        with Skerry(*address(), timeout_s=ANSWER_S, retries=0) as server:
            words = ask(server)
    except (SkerryError, OSError):
        return []
    return sorted({word for word in words if word.startswith(incomplete) and _HARMLESS.fullmatch(word)})


def prepare() -> None:
    """Before the command line is parsed: teach the library the shells, where a shell asks."""
    import os

    if os.environ.get(VARIABLE):
        from typer._completion_classes import completion_init  # pyright: ignore[reportPrivateUsage]

        completion_init()
