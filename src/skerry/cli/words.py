"""`[SANDBOX] [--] COMMAND…`: what belongs to us and what to the command, exactly as it was typed.

Click drops the first `--` it meets, so that `exec -- echo box` and `exec echo box` would look alike. It is marked
before.
"""

from typing import Any

import typer
from typer.core import TyperCommand

from skerry.cli.completion import complete_sandbox
from skerry.model.errors import Invalid

MARK = "\0--"  # no argument can hold it
# What follows the first word belongs to the command, options too.
PASS_ON = {"allow_interspersed_args": False}


class WithCommand(TyperCommand):
    """For commands whose words are read by `split` or `bare`; use it with PASS_ON."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args = [*args[: at + 1], MARK, *args[at + 1 :]]
        return super().parse_args(ctx, args)


def split(words: list[str]) -> tuple[str | None, list[str]]:
    """The sandbox (None: it was left out, with `--` in front of the command) and the command.

    Raises:
        Invalid: There is no command.
    """
    sandbox, command = split_optional(words)
    if not command:
        raise Invalid(
            "Give a command, such as: skerry exec SANDBOX -- echo hello (after `skerry use` the sandbox may be left"
            " out)",
            field="command",
        )
    return sandbox, command


def split_optional(words: list[str]) -> tuple[str | None, list[str]]:
    """As `split`, where the command may be left out."""
    if not words:
        return None, []
    if words[0] == MARK:
        return None, words[1:]
    if words[1:3] == ["--", MARK]:
        return words[0], words[3:]
    return words[0], bare(words[1:])


def bare(words: list[str]) -> list[str]:
    """The words as they were typed, where no sandbox is among them."""
    return [word for word in words if word != MARK]


def is_marked(words: list[str]) -> bool:
    """Whether `--` stands in front of all of them."""
    return words[:1] == [MARK]


def complete_first(ctx: typer.Context, incomplete: str) -> list[str]:
    """Sandboxes' names for the first word; nothing for a command's own words."""
    return [] if ctx.params.get("words") else complete_sandbox(incomplete)
