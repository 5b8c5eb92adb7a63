"""`ps`, `ports`, `metrics`, `commands`, `logs`: what runs and listens inside, what it uses, and what it has said."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import client, find, matching
from skerry.cli.output import Format, OutputOption, data_json, hint, table
from skerry.cli.sandboxes import SandboxArgument
from skerry.model.errors import Invalid, NotFound

if TYPE_CHECKING:
    from skerry.sdk import RunningCommand, Skerry

LONGEST_LINE = 120


def register(app: typer.Typer) -> None:
    app.command()(logs)
    app.command("commands")(list_commands)
    app.command()(ps)
    app.command()(ports)
    app.command()(metrics)


def ps(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """List the processes inside."""
    with client() as server:
        found = find(server, sandbox).processes()
    if output is Format.JSON:
        data_json([one.model_dump(mode="json") for one in found])
        return
    rows = [
        [
            str(one.pid),
            str(one.ppid),
            str(one.uid),
            one.state,
            f"{one.cpu_ms / 1000:.1f}",
            f"{one.memory_bytes / 1e6:.1f}",
            (" ".join(one.argv) or f"[{one.name}]")[:LONGEST_LINE],
        ]
        for one in found
    ]
    table(["PID", "PPID", "UID", "STATE", "CPU S", "MB", "COMMAND"], rows)


def ports(sandbox: SandboxArgument = None, output: OutputOption = Format.TEXT) -> None:
    """List the TCP ports that something inside listens on."""
    with client() as server:
        found = find(server, sandbox).ports()
    if output is Format.JSON:
        data_json([one.model_dump(mode="json") for one in found])
        return
    rows = [[str(one.port), one.address, str(one.pid) if one.pid is not None else "-"] for one in found]
    table(["PORT", "ADDRESS", "PID"], rows)


def metrics(
    sandbox: SandboxArgument = None,
    since: Annotated[
        int | None,
        typer.Option("--since", min=1, metavar="SECONDS", help="What it used in the last so many, too."),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option("--step", min=1, max=86_400, metavar="SECONDS", help="One line for each; with --since."),
    ] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show what a sandbox uses: now, and with --since what it used (at most a day back)."""
    from datetime import UTC, datetime, timedelta

    if step is not None and since is None:
        raise Invalid("--step spaces out what --since shows: give both, or neither.", field="step")
    begin = None if since is None else datetime.now(UTC) - timedelta(seconds=since)
    with client() as server:
        told = find(server, sandbox).metrics(since=begin, step_s=step)
    samples = [*(told.history if since is not None else []), *([told.now] if told.now is not None else [])]
    if output is Format.JSON:
        shown = told.model_dump(mode="json")
        data_json(shown if since is not None else {**shown, "history": []})
        return
    if not samples:
        hint("skerry: it does not run, so that it uses nothing now; --since tells what it used")
    rows = [
        [
            f"{one.at:%H:%M:%S}",
            "-" if one.cpu_percent is None else f"{one.cpu_percent:.0f} %",
            _size(one.memory_bytes),
            str(one.processes),
            "-" if one.disk_bytes is None else _size(one.disk_bytes),
            _size(one.network_rx_bytes),
            _size(one.network_tx_bytes),
        ]
        for one in samples
    ]
    table(["UTC", "CPU", "MEMORY", "THREADS", "DISK", "RECEIVED", "SENT"], rows)


def _size(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:.1f} MB"


def list_commands(
    sandbox: SandboxArgument = None,
    status: Annotated[
        list[str] | None,
        typer.Option("--status", help="Only running, completed, failed, timeout; may be repeated."),
    ] = None,
    limit: Annotated[int | None, typer.Option("-n", "--limit", min=1, help="Only the latest so many.")] = None,
    output: OutputOption = Format.TEXT,
) -> None:
    """List what was run in a sandbox, newest first: commands, startups and terminals. `logs` shows their output."""
    with client() as server:
        found = [one.info for one in find(server, sandbox).commands.list(status=status, limit=limit)]
    if output is Format.JSON:
        shown = {"id", "kind", "status", "exit_code", "signal", "reason", "command", "started_at", "duration_ms"}
        data_json([one.model_dump(mode="json", include=shown) for one in found])
        return
    rows = [
        [
            one.id,
            one.kind.value,
            one.status.value,
            "-" if one.exit_code is None else str(one.exit_code),
            f"{one.started_at:%Y-%m-%d %H:%M:%S}",
            one.command[:LONGEST_LINE],
        ]
        for one in found
    ]
    table(["ID", "KIND", "STATUS", "EXIT", "STARTED (UTC)", "COMMAND"], rows)


def logs(
    what: Annotated[
        str | None, typer.Argument(metavar="[SANDBOX|COMMAND]", help="A command's id (cmd_…), or a sandbox.")
    ] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as it comes, to its end.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """Show what a command has printed: the one that is named, else the sandbox's latest, else its startup.

    Its stdout and stderr go to this program's. What the server has not kept is told on stderr.
    """
    from skerry.cli.foreground import as_json, told, writer

    with client() as server:
        running = _command(server, what)
        if running.id != what:
            hint(f"skerry: {running.id}: {running.info.command[:LONGEST_LINE]}")
        if output is Format.JSON:
            if follow:
                raise Invalid("-f has no JSON: leave out -f, or -o json.", field="output")
            data_json(as_json(running.poll()))
            return
        write = {"stdout": writer(1), "stderr": writer(2)}
        if follow:
            result = running.wait(on_stdout=write["stdout"], on_stderr=write["stderr"])
            told(result, result.lost_bytes)
            return
        now = running.poll()
        _so_far(running, now.output_bytes, write)


def _so_far(running: "RunningCommand", end: int, write: "dict[str, Callable[[bytes], None]]") -> None:
    """All output up to `end`, which is there already."""
    from contextlib import closing

    from skerry.sdk import Lost

    if not end:
        return
    with closing(running.events()) as events:
        for event in events:
            if isinstance(event, Lost):
                hint(f"skerry: {event.length} bytes of output are not kept")
                at = event.offset + event.length
            else:
                write[event.stream](event.data)
                at = event.end
            if at >= end:
                return


def _command(server: "Skerry", what: str | None) -> "RunningCommand":
    from skerry.model.ids import is_id

    if what is not None and is_id(what, "cmd"):
        return server.command(what)
    if what is not None and what.startswith("cmd_") and not matching(server, what):
        raise NotFound(f"No command '{what}'. `skerry commands SANDBOX` lists those of a sandbox.")
    box = find(server, what)
    for kind in ("command", "startup"):
        for latest in box.commands.list(kind=kind, limit=1):
            return latest
    raise NotFound(f"Nothing was run in {box.id}. What its terminals showed: skerry commands, then skerry logs cmd_…")
