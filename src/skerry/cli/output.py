"""What goes where: stdout is data and nothing else; progress, hints and errors go to stderr."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TextIO, cast

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from skerry.model.errors import SkerryError


class Format(StrEnum):
    TEXT = "text"
    JSON = "json"


class ReaderGone(Exception):
    """Whoever read our output has gone. No OSError: those of this kind are taken by the library below."""


OutputOption = Annotated[Format, typer.Option("-o", "--output", help="How to print the result.")]


def console() -> "Console":
    """For people: stderr."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def data(text: str) -> None:
    """One line of data. Whatever comes from a server or a sandbox in it, it is one line and acts on no terminal."""
    _write(printable(text) + "\n")


def data_json(value: object) -> None:
    _write(json.dumps(value, indent=2) + "\n")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text)
    except BrokenPipeError as error:
        raise ReaderGone from error


def printable(text: str) -> str:
    """Text that a sandbox or another client chose, without what would act on a terminal."""
    return "".join(character if character.isprintable() else "?" for character in text)


_SIGNS = str.maketrans({"✓": "+", "✗": "x", "–": "-", "→": "->", "…": "...", "█": "#", "≥": ">="})


def drawn(text: str, stream: TextIO | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Words of our own, with letters for their signs where `stream` (stdout) or the locale cannot show signs.

    Not for data, which goes out as it is. In the locale C Python writes UTF-8, and terminals show something else.
    """
    encoding = (stream or sys.stdout).encoding or "ascii"
    locale = environ.get("LC_ALL") or environ.get("LC_CTYPE") or environ.get("LANG") or "C"
    plain = locale in ("C", "POSIX") or not encoding.lower().replace("-", "").startswith("utf")
    return text.translate(_SIGNS) if plain else text


def hint(text: str) -> None:
    """Words for a person; several lines are shown as such. They come behind the data that is out already."""
    with suppress(OSError, ValueError):  # it is found again where data is written
        sys.stdout.flush()
    shown = "\n".join(printable(line) for line in text.split("\n"))
    sys.stderr.write(drawn(shown, sys.stderr) + "\n")


def progress(tell: Callable[[str], None] | None = None, *, watched: bool | None = None) -> Callable[[float, str], None]:
    """Tells how far something is (from 0 to 1), and what it does: each percent to eyes, each tenth to a file."""
    tell, watched = tell or hint, sys.stderr.isatty() if watched is None else watched
    every, shown = 1 if watched else 10, -1

    def show(fraction: float, what: str) -> None:
        nonlocal shown
        percent = int(fraction * 100 + 1e-9)
        if percent // every > shown:
            shown = percent // every
            tell(f"  {'█' * (percent // 5):<20} {percent:3} %  {what}"[:112])

    return show


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], spare: Sequence[str] = ()) -> None:
    """Columns in plain text: for eyes, and for `awk`. On a narrow terminal those in `spare` are left out, in order."""
    columns = list(zip(headers, *([printable(cell) for cell in row] for row in rows), strict=True))
    widest = _columns()
    for name in spare:
        if sum(_width(column) + 2 for column in columns) - 2 <= widest:
            break
        columns = [column for column in columns if column[0] != name]
    padded = [[cell.ljust(_width(column)) for cell in column] for column in columns]
    for line in zip(*padded, strict=True):
        data("  ".join(line).rstrip())


def _width(column: Sequence[str]) -> int:
    return max(len(cell) for cell in column)


def _columns() -> float:
    """How many the terminal has; no end of them where nobody looks, or nobody knows."""
    return shutil.get_terminal_size((sys.maxsize, 0)).columns if sys.stdout.isatty() else float("inf")


def members(shown: Mapping[str, object]) -> None:
    """One line for each member of an object that holds something, a member of a member as `outer.inner`."""
    told = list(_members("", shown))
    width = max((len(name) for name, _ in told), default=0)
    for name, value in told:
        data(f"{name:<{width}}  {value}")


def _members(prefix: str, shown: Mapping[str, object]) -> Generator[tuple[str, str]]:
    for name, value in shown.items():
        if isinstance(value, dict) and not prefix:
            yield from _members(f"{name}.", cast("dict[str, object]", value))
        elif isinstance(value, list) and all(isinstance(one, str) for one in cast("list[object]", value)):
            yield from [(prefix + name, ", ".join(cast("list[str]", value)))] if value else []
        elif value not in (None, "", {}, []):
            yield prefix + name, value if isinstance(value, str) else json.dumps(value)


def failure(error: "SkerryError", form: Format = Format.TEXT) -> None:
    """An error, for a person or for a program: on stderr in both cases."""
    if form is Format.JSON:
        detail = {"code": error.code, "message": error.message, "field": error.field}
        sys.stderr.write(json.dumps({"error": {k: v for k, v in detail.items() if v is not None}}) + "\n")
    else:
        hint(f"skerry: {error.message}")


def local_failure(error: OSError) -> "SkerryError":
    """What this machine's own system refused (a file, a directory), as an error of ours."""
    from skerry.model.errors import Invalid

    named = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return Invalid(f"{named}{error.strerror or error} (on this machine).", code="local")


class Step:
    """One step's outcome: `note` is shown beside it, `seconds` is known once it has ended."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.note = ""
        self.seconds = 0.0


@contextmanager
def step(title: str, steps: list[Step], *, quiet: bool) -> Generator[Step]:
    """Do a step in sight: a spinner while it lasts (on a terminal), a line of data with its time at its end."""
    one = Step(title)
    begun = time.perf_counter()
    if sys.stderr.isatty():
        with console().status(title):
            yield one
    else:
        yield one
    one.seconds = time.perf_counter() - begun
    steps.append(one)
    if not quiet:
        data(drawn(f"  {title:<34} {_duration(one.seconds):>9}  {one.note}".rstrip()))
        sys.stdout.flush()


def _duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
