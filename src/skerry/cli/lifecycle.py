"""`up`, `down`, `serve`: the server on this machine."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import config, require_server
from skerry.cli.output import Format, OutputOption, Step, data, data_json, hint, progress, step
from skerry.model.errors import Conflict, Refused, SkerryError, Unavailable

if TYPE_CHECKING:
    from skerry.cli.launch import Started
    from skerry.config import Config
    from skerry.sdk import Skerry
    from skerry.wire.sandboxes import CapabilitiesView

HostOption = Annotated[str | None, typer.Option("--host", help="Address the API listens on.")]
PortOption = Annotated[int | None, typer.Option("--port", help="TCP port of the API; 0 takes a free one.")]
RuntimeOption = Annotated[str | None, typer.Option("--runtime", help="runsc, crun or runc; left out: the one in use.")]
SharedOption = Annotated[
    bool | None,
    typer.Option("--allow-shared-kernel", help="Permit crun and runc, whose sandboxes share this host's kernel."),
]


def register(app: typer.Typer) -> None:
    app.command()(up)
    app.command()(down)
    app.command()(serve)


def serve(
    host: HostOption = None, port: PortOption = None, runtime: RuntimeOption = None, shared: SharedOption = None
) -> None:
    """Run the server in the foreground (root), until SIGTERM or Ctrl-C."""
    require_server()
    from skerry.serve import serve as run_server

    raise typer.Exit(run_server(config(host=host, port=port, runtime=runtime, allow_shared_kernel=shared)))


def up(
    host: HostOption = None,
    port: PortOption = None,
    runtime: RuntimeOption = None,
    shared: SharedOption = None,
    demo: Annotated[bool, typer.Option("--demo/--no-demo", help="Show it working at the end.")] = True,
    output: OutputOption = Format.TEXT,
) -> None:
    """Start the server in the background, wait until it is ready, and show it working.

    One that runs with other settings, or of another version, is restarted; its sandboxes go on.
    """
    from skerry import instance
    from skerry.cli.demo import run_demo
    from skerry.cli.launch import start
    from skerry.sdk import Skerry

    require_server()
    if os.geteuid() != 0:
        raise Refused("The server makes sandboxes, mounts and networks: run this as root (sudo skerry up).")
    here = config(host=host, port=port, runtime=runtime, allow_shared_kernel=shared)
    steps: list[Step] = []
    quiet = output is Format.JSON
    with _told_of_an_interrupt():
        with step("start the server", steps, quiet=quiet) as one:
            started = start(here)
            runs = started.capabilities
            one.note = f"{started.note}, {runs.runtime} {runs.runtime_version}".rstrip()
        require_disk_limit(here, runs)
        with Skerry(instance.url(here), instance.key(here)) as server:
            _build(server, here.default_template, steps, quiet=quiet)
            if demo:
                run_demo(server, steps, quiet=quiet)
    report(here, started, steps, output)


def require_disk_limit(here: "Config", runs: "CapabilitiesView") -> None:
    """Raises Refused where the server would refuse every sandbox for this: before minutes go into a template."""
    if runs.disk_limit != "none" or here.allow_unlimited_disk:
        return
    pool = next((probe for probe in runs.probes if probe.name == "pool"), None)
    why, remedy = (f" ({pool.detail})", f" {pool.remedy}") if pool is not None else ("", "")
    raise Refused(
        f"Disk limits cannot be enforced here{why}, so one sandbox could fill the disk, and the server makes none."
        f"{remedy} To run without disk limits all the same, set allow_unlimited_disk."
    )


@contextmanager
def _told_of_an_interrupt() -> Generator[None]:
    try:
        yield
    except KeyboardInterrupt:
        hint("skerry: `up` was interrupted. What it had started goes on: `skerry up` continues, `skerry down` ends it.")
        raise


def down(
    all: Annotated[bool, typer.Option("--all", help="End the sandboxes too. Their files are kept.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """End the server. Its sandboxes go on until the next `up`, or end with --all. Safe to call when none runs."""
    from skerry.cli.launch import alone
    from skerry.config import locate

    if os.geteuid() != 0:
        raise Refused("The server runs as root, and only root can end it (sudo skerry down).")
    here = locate()
    if not here.run_dir.is_dir():
        pid, left = None, 0
    else:
        with alone(here):
            pid, left = _end(here, end_sandboxes=all)
    if pid is None and all:
        raise Conflict(f"No server runs from {here.home} that could end its sandboxes. `skerry up` first.")
    if output is Format.JSON:
        data_json({"stopped": pid is not None, "pid": pid, "sandboxes_left_running": left})
        return
    data(f"Stopped (it was process {pid})." if pid is not None else f"No server runs from {here.home}.")
    if left:
        hint(f"{left} of its sandboxes go on. `skerry up` takes them over; `skerry up && skerry down --all` ends them.")


def _end(here: "Config", *, end_sandboxes: bool) -> tuple[int | None, int]:
    """The process that was ended, and how many sandboxes go on without it."""
    from skerry import instance
    from skerry.cli.launch import stop

    pid = instance.running_pid(here)
    if pid is None:
        return None, 0
    try:
        left = _leave_sandboxes(here, end=end_sandboxes)
    except SkerryError as error:
        stop(here, pid)
        raise Unavailable(
            f"The server (process {pid}) has been ended, but its node did not answer, and may have left sandboxes"
            f" running ({error.message}). To end those: `skerry up`, then `skerry down --all`."
        ) from error
    stop(here, pid)
    return pid, left


def _leave_sandboxes(here: "Config", *, end: bool) -> int:
    """How many sandboxes go on running when the server ends. A node that does not answer keeps what it has."""
    require_server()
    from skerry.serve import leave_sandboxes

    try:
        return leave_sandboxes(here, end=end)
    except Unavailable:
        if end:
            raise
        return 0


def _build(server: "Skerry", template: str, steps: list[Step], *, quiet: bool) -> None:
    if server.templates.get(template).status == "ready":
        return
    with step(f"build the template {template}", steps, quiet=quiet):
        tell = progress()
        for line in server.templates.build(template):
            tell(line.fraction, line.line)


def report(here: "Config", started: "Started", steps: list[Step], output: Format) -> None:
    """Tell what `up` has come to."""
    from skerry import instance

    url, runtime = instance.url(here), started.capabilities.runtime
    if output is Format.JSON:
        timed = [{"step": one.title, "seconds": round(one.seconds, 4), "note": one.note} for one in steps]
        changed = {name: {"from": was, "to": now} for name, (was, now) in started.changed.items()}
        about = {"url": url, "pid": instance.running_pid(here), "runtime": runtime}
        data_json({**about, "changed": changed, "steps": timed})
        return
    isolation = (
        "which shares this host's kernel"
        if started.capabilities.shares_kernel
        else "each sandbox with a kernel of its own"
    )
    data("")
    data(f"Skerry is up at {url}. Active runtime: {runtime}, {isolation}.")
    hint(
        '\nNext:\n  eval "$(./skerry client-env)"           address and key for clients\n'
        "  ./skerry run -- python3 -c 'print(42)'   a command in a sandbox of its own\n"
        "  ./skerry create --name box               a sandbox to keep\n"
        "  ./skerry down --all                      end it, and its sandboxes"
    )
