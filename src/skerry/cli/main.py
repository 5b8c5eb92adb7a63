"""The program `skerry`: its commands, and how an error leaves it. Imports as little as `--help` needs."""

import io
import os
import signal
import sys

import typer

from skerry.cli import (
    completion,
    copying,
    diagnosis,
    environment,
    files,
    git,
    inspecting,
    lifecycle,
    login,
    running,
    sandboxes,
    session,
    snapshots,
    startup,
    stopping,
    templates,
)
from skerry.cli.interrupts import ENDING
from skerry.cli.output import Format, ReaderGone, failure, hint, local_failure

FAULT = 70  # EX_SOFTWARE

app = typer.Typer(
    help="Sandboxes for AI agents on machines you own.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (
    lifecycle,
    diagnosis,
    login,
    sandboxes,
    stopping,
    snapshots,
    running,
    copying,
    files,
    inspecting,
    environment,
    startup,
    session,
    git,
    templates,
    completion,
):
    module.register(app)


def _version(value: bool) -> None:
    if value:
        from skerry import __version__

        sys.stdout.write(f"skerry {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Sandboxes for AI agents on machines you own."""


def main() -> None:
    """Run the command line; never shows a traceback for an error of ours."""
    from skerry.model.errors import SkerryError

    for number in ENDING:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)  # each as Ctrl-C: what was begun is put away
    if isinstance(sys.stdout, io.TextIOWrapper):  # what a terminal cannot show is no reason to fail
        sys.stdout.reconfigure(errors="backslashreplace")
    completion.prepare()
    try:
        try:
            app(prog_name="skerry")
        finally:
            for number in ENDING:  # all is put away: from here on there is nothing to interrupt
                signal.signal(number, signal.SIG_IGN)
            sys.stdout.flush()
    except SkerryError as error:
        failure(error, _form(sys.argv))
        sys.exit(1)
    except KeyboardInterrupt:
        hint("skerry: interrupted")
        sys.exit(130)
    except (ReaderGone, BrokenPipeError):
        # Whoever read our output has gone: say nothing, and keep Python from saying it at exit.
        sys.stderr.close()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except OSError as error:
        failure(local_failure(error), _form(sys.argv))
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 - nobody stands above: a traceback is no answer to a user
        sys.exit(_unexpected(error))


def _unexpected(error: Exception) -> int:
    """A fault of our own, as a message; where it is, only for whoever asks. The exit code."""
    if os.environ.get("SKERRY_DEBUG"):
        import traceback

        traceback.print_exception(error)
    from skerry.model.errors import SkerryError

    told = f"A fault of skerry itself: {type(error).__name__}: {error}. SKERRY_DEBUG=1 shows where; please report it."
    failure(SkerryError(told, code="fault"), _form(sys.argv))
    return FAULT


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _form(argv: list[str]) -> Format:
    before = argv[: argv.index("--")] if "--" in argv else argv
    pairs = zip(before, [*before[1:], ""], strict=True)
    asked = any(word in ("-o", "--output") and value == "json" for word, value in pairs)
    return Format.JSON if asked or "-ojson" in before or "--output=json" in before else Format.TEXT
