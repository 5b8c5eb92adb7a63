"""`stop`, `resume`, `fork`: a sandbox that is left, taken up again, and branched."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.completion import complete_sandbox
from skerry.cli.connection import client, find
from skerry.cli.interrupts import telling
from skerry.cli.output import Format, OutputOption, data, data_json, failure, hint
from skerry.cli.progress import bar, brought_back
from skerry.cli.sandboxes import LabelOption, SandboxArgument, as_json, parse_pairs
from skerry.model.errors import SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Sandbox

SandboxesArgument = Annotated[
    list[str] | None,
    typer.Argument(
        help="Ids, names, labels or beginnings of ids. Left out: the one in use here.", autocompletion=complete_sandbox
    ),
]


def register(app: typer.Typer) -> None:
    app.command()(stop)
    app.command()(resume)
    app.command()(fork)


def stop(
    sandboxes: SandboxesArgument = None,
    force: Annotated[bool, typer.Option("--force", help="Also while a command runs, which ends with it.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Until the files are stored.")] = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Free sandboxes' compute and keep the files of /workspace, until their next use. What runs in them ends.

    One line each, with its status: `stopped`, or `stopping` while its files are being stored, which goes on without us.
    """
    with client() as server, telling("What was begun goes on by itself: `skerry ls` shows it."):
        told = [_tried(word, lambda w: find(server, w).stop(force=force, wait=False)) for word in sandboxes or [None]]
        if wait:
            told = [_waited_for(one, output) for one in told]
    _report(told, output)
    if not wait and any(one.box is not None and one.box.status == "stopping" for one in told):
        hint(
            "The compute is freed, and files are being stored (`skerry ls`). Whoever uses one meanwhile brings it back."
        )


def resume(sandboxes: SandboxesArgument = None, output: OutputOption = Format.TEXT) -> None:
    """Bring stopped sandboxes back with their files. Their next command would do so, too. One that runs is left so."""
    with client() as server, telling("What was begun goes on by itself: `skerry ls` shows it."):
        told = [_tried(word, lambda w: brought_back(server, find(server, w), output)) for word in sandboxes or [None]]
    _report(told, output)


def fork(
    sandbox: SandboxArgument = None,
    count: Annotated[int | None, typer.Option("--count", min=1, max=100, help="As many copies at once.")] = None,
    name: Annotated[str | None, typer.Option("-n", "--name", help="A name for people, of each copy.")] = None,
    label: LabelOption = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Make sandboxes with a copy of one's files and configuration, and print their ids. It goes on undisturbed."""
    metadata = parse_pairs(label, "label") or None
    with client() as server, telling("Copies may have been made all the same: `skerry ls`"):
        source = find(server, sandbox)
        if count is None:
            copies: Sequence[Sandbox | SkerryError] = [source.fork(name=name, metadata=metadata)]
        else:
            copies = source.forks(count, name=name, metadata=metadata)
    shown = [_error(one) if isinstance(one, SkerryError) else as_json(one) for one in copies]
    if output is Format.JSON:
        data_json(shown if count is not None else shown[0])
    for one in copies:
        if isinstance(one, SkerryError):
            told = SkerryError(f"A copy was not made: {one.message}", code=one.code, field=one.field)
            failure(told, output)
        elif output is Format.TEXT:
            data(one.id)
    if any(isinstance(one, SkerryError) for one in copies):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Done:
    """What became of one word: the sandbox, where it came so far, and the error that it met, if any."""

    word: str | None
    box: "Sandbox | None" = None
    error: SkerryError | None = None


def _tried(word: str | None, act: "Callable[[str | None], Sandbox]") -> _Done:
    try:
        return _Done(word, act(word))
    except SkerryError as error:
        return _Done(word, error=error)


def _waited_for(one: _Done, output: Format) -> _Done:
    box = one.box
    if box is None or box.status != "stopping":
        return one
    try:
        with bar(output, f"storing {box.name or box.id}") as advance:
            box.wait_stopped(on_progress=advance)
    except SkerryError as error:
        return _Done(one.word, box, error)
    return one


def _report(told: Sequence[_Done], output: Format) -> None:
    """One line each; exit code 1 where one failed."""
    if output is Format.JSON:
        data_json([_shown(one) for one in told])
    for one in told:
        if one.box is not None and output is Format.TEXT:
            data(f"{one.box.id} {one.box.status}")
        if one.error is not None:
            failure(one.error, output)
    if any(one.error is not None for one in told):
        raise typer.Exit(1)


def _shown(one: _Done) -> dict[str, object]:
    shown: dict[str, object] = {"sandbox": one.word} if one.box is None else as_json(one.box)
    return shown if one.error is None else {**shown, **_error(one.error)}


def _error(error: SkerryError) -> dict[str, object]:
    return {"error": {"code": error.code, "message": error.message}}
