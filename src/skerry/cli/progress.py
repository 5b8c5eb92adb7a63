"""Bars on stderr, where a person looks at a terminal and has not asked for JSON. Elsewhere nothing is shown."""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from skerry.cli.output import Format, console, printable
from skerry.model.errors import SkerryError

if TYPE_CHECKING:
    from rich.progress import Progress

    from skerry.sdk import Sandbox, Skerry

Advance = Callable[[int, int | None], object]
"""Is told how many bytes are done, of how many (None: not known yet)."""
LOOK_S = 0.3


@contextmanager
def bar(output: Format, title: str) -> Generator[Advance | None]:
    """A bar from the first telling on; it goes at the end. None: nobody would see one."""
    if output is Format.JSON or not sys.stderr.isatty():
        yield None
        return
    shown: list[Progress] = []

    def advance(done: int, total: int | None) -> None:
        if not shown:
            shown.append(_started(printable(title)))
        shown[0].update(shown[0].task_ids[0], completed=done, total=total)

    try:
        yield advance
    finally:
        for one in shown:
            one.stop()


@contextmanager
def watching(server: "Skerry", box: "Sandbox", advance: Advance | None) -> Generator[None]:
    """Meanwhile tell how far a sandbox's files are on their way. A look that fails shows nothing."""
    if advance is None:
        yield
        return
    over = Event()

    def look() -> None:
        while not over.wait(LOOK_S):
            try:
                progress = server.get(box.id).info.progress
            except SkerryError:
                continue
            if progress is not None and not over.is_set():
                advance(progress.done_bytes, progress.total_bytes)

    looker = Thread(target=look, daemon=True)  # an interrupt does not wait for its answer
    looker.start()
    try:
        yield
    finally:
        over.set()
    looker.join()


def brought_back(server: "Skerry", box: "Sandbox", output: Format) -> "Sandbox":
    """Resume it, with a bar while its files come from the object store; itself.

    Any use of a stopped sandbox would do so, too, but unseen, and with the patience that one answer is given.
    """
    with bar(output, f"fetching {box.name or box.id}") as advance, watching(server, box, advance):
        return box.resume()


def ready(server: "Skerry", box: "Sandbox", output: Format) -> "Sandbox":
    """It, brought back where it is stopped."""
    return brought_back(server, box, output) if box.status == "stopped" else box


def _started(title: str) -> "Progress":
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    made = Progress(*columns, TimeRemainingColumn(), console=console(), transient=True)
    made.add_task(title, total=None)
    made.start()
    return made
