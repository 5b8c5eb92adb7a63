"""A command in the foreground, on pipes: its output goes to ours, our standard input to its; bytes as they are.

It ends with us: an interrupt, or the end of whoever reads our output, kills it.
"""

import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from skerry.cli.interrupts import held
from skerry.cli.output import Format, ReaderGone, data_json, hint
from skerry.model.errors import SkerryError

if TYPE_CHECKING:
    from skerry.sdk import Attachment, CommandResult, RunningCommand, Sandbox, ShellResult

CHUNK_BYTES = 1 << 16


def follow(box: "Sandbox", command: list[str], output: Format, given: dict[str, Any], *, with_stdin: bool) -> int:
    """Run a command to its end. The exit code for a shell."""
    if output is Format.JSON:
        result = _collected(box, command, given, with_stdin=with_stdin)
        data_json(as_json(result))
        return result.shell_code
    # It waits for us instead of losing what is beyond the server's cap.
    given = {**given, "keep": "unread"}
    with _foreground(box, command, given, with_stdin) as running:
        if with_stdin:
            return _with_input(running)
        result = running.wait(on_stdout=writer(1), on_stderr=writer(2))
    return told(result, result.lost_bytes)


def told(result: "CommandResult", lost_bytes: int) -> int:
    """Say what an exit code cannot; the exit code for a shell."""
    if result.exit_code is None or lost_bytes:
        lost = f" {lost_bytes} bytes of output were beyond the server's cap." if lost_bytes else ""
        hint(f"skerry: the command {result.ending}.{lost}")
    return result.shell_code


def ended(result: "CommandResult | ShellResult", output: Format) -> int:
    """Show the output of a command that has ended; the exit code for a shell."""
    from skerry.sdk import CommandResult

    code = result.shell_code if isinstance(result, CommandResult) else result.exit_code
    if output is Format.JSON:
        data_json(as_json(result))
        return code
    writer(1)(result.stdout_bytes)
    writer(2)(result.stderr_bytes)
    if result.truncated:
        hint(f"skerry: this is the beginning of the output; all that is kept: skerry logs {result.id}")
    if result.status != "completed":
        hint(f"skerry: the command {result.ending}.")
    return code


def writer(descriptor: int) -> Callable[[bytes], None]:
    """Writes bytes to a descriptor as they are, all of them, at once."""

    def write(data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(descriptor, view) :]
        except BrokenPipeError as error:
            raise ReaderGone from error

    return write


def as_json(result: "CommandResult | ShellResult") -> dict[str, object]:
    return {
        "id": result.id,
        "status": result.status,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "reason": result.reason,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "truncated": result.truncated,
        "duration_ms": result.duration_ms,
    }


def feed(attachment: "Attachment", descriptor: int = 0) -> None:
    """Pass our standard input on, in a thread of its own, to its end or the command's."""

    def run() -> None:
        with suppress(SkerryError, OSError):  # it has ended, or has been told by whoever reads the events
            while chunk := os.read(descriptor, CHUNK_BYTES):
                attachment.send(chunk)
            attachment.end_input()

    # Nothing waits for it: it may stand in a read that never ends.
    threading.Thread(target=run, name="stdin", daemon=True).start()


@contextmanager
def _foreground(
    box: "Sandbox", command: list[str], given: dict[str, Any], with_stdin: bool
) -> "Generator[RunningCommand]":
    with held() as interrupts:
        running = box.commands.start(command, stdin_stream=with_stdin, **given)
        try:
            with interrupts.released():
                yield running
        except (KeyboardInterrupt, ReaderGone):
            with suppress(SkerryError):
                running.kill()
            raise


def _with_input(running: "RunningCommand") -> int:
    from skerry.sdk import Lost

    write = {"stdout": writer(1), "stderr": writer(2)}
    lost_bytes = 0
    with running.attach() as attachment:
        feed(attachment)
        for event in attachment.events():
            if isinstance(event, Lost):
                lost_bytes += event.length
            else:
                write[event.stream](event.data)
    return told(running.poll(), lost_bytes)


def _collected(box: "Sandbox", command: list[str], given: dict[str, Any], *, with_stdin: bool) -> "CommandResult":
    with _foreground(box, command, given, with_stdin) as running:
        if not with_stdin:
            return running.wait()
        with running.attach() as attachment:
            feed(attachment)
            for _ in attachment.events():
                pass
        return running.poll()
