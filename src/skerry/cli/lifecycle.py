"""`up`, `down`, `serve`: the server on this machine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from skerry.cli.connection import config
from skerry.cli.output import Format, OutputOption, Step, data, data_json, hint, progress_line, step
from skerry.model.errors import Conflict, DeadlineExceeded, Refused, Unavailable

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.sdk import Skerry
    from skerry.wire.sandboxes import CapabilitiesView

READY_S = 60.0
DOWN_S = 60.0
LOG_BYTES = 16 << 20

HostOption = Annotated[str | None, typer.Option("--host", help="Address the API listens on.")]
PortOption = Annotated[int | None, typer.Option("--port", help="TCP port of the API; 0 takes a free one.")]
RuntimeOption = Annotated[str | None, typer.Option("--runtime", help="runsc, crun or runc.")]
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
    """Start the server in the background, wait until it is ready, and show it working."""
    from skerry import instance
    from skerry.cli.demo import run_demo
    from skerry.sdk import Skerry

    if os.geteuid() != 0:
        raise Refused("The server makes sandboxes, mounts and networks: run this as root (sudo skerry up).")
    here = config(host=host, port=port, runtime=runtime, allow_shared_kernel=shared)
    steps: list[Step] = []
    quiet = output is Format.JSON
    with step("start the server", steps, quiet=quiet) as one:
        one.note = _start(here)
        url, key = instance.url(here), instance.key(here)
        # Short patience: the socket takes connections from the first moment, long before anybody answers.
        with Skerry(url, key, timeout_s=3, retries=0) as impatient:
            capabilities = _wait_ready(here, impatient)
        one.note += f", {capabilities.runtime} {capabilities.runtime_version}".rstrip()
    with Skerry(url, key) as server:
        _build(server, here.default_template, steps, quiet=quiet)
        if demo:
            run_demo(server, steps, quiet=quiet)
    _report(here, capabilities.runtime, capabilities.shares_kernel, steps, output)


def down(
    all: Annotated[bool, typer.Option("--all", help="End the sandboxes too. Their files are kept.")] = False,
    output: OutputOption = Format.TEXT,
) -> None:
    """End the server. Its sandboxes go on until the next `up`, or end with --all. Safe to call when none runs."""
    from skerry import instance

    if os.geteuid() != 0:
        raise Refused("The server runs as root, and only root can end it (sudo skerry down).")
    here = config()
    pid = instance.running_pid(here)
    if pid is None:
        if all:
            raise Conflict(f"No server runs from {here.home} that could end its sandboxes. `skerry up` first.")
        left = 0
    else:
        left = _leave_sandboxes(here, end=all)
        _stop(here, pid)
    if output is Format.JSON:
        data_json({"stopped": pid is not None, "pid": pid, "sandboxes_left_running": left})
        return
    data(f"Stopped (it was process {pid})." if pid is not None else f"No server runs from {here.home}.")
    if left:
        hint(f"{left} of its sandboxes go on. `skerry up` takes them over; `skerry up && skerry down --all` ends them.")


def _leave_sandboxes(here: "Config", *, end: bool) -> int:
    """How many sandboxes go on running when the server ends. A node that does not answer keeps what it has."""
    from skerry.serve import leave_sandboxes

    try:
        return leave_sandboxes(here, end=end)
    except Unavailable:
        if end:
            raise
        return 0


def _start(here: "Config") -> str:
    from skerry import instance

    pid = instance.running_pid(here)
    if pid is not None:
        if _same_revision(here):
            return f"runs already, process {pid}"
        _stop(here, pid)
    _spawn(here)
    return "restarted with the new version" if pid is not None else "started"


def _same_revision(here: "Config") -> bool:
    from skerry import instance

    try:
        return instance.revision_file(here).read_text() == instance.installed_revision(here)
    except OSError:
        return False


def _stop(here: "Config", pid: int) -> None:
    from skerry import instance

    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + DOWN_S
    while instance.running_pid(here) == pid:
        if time.monotonic() > deadline:
            log = instance.log_file(here)
            raise DeadlineExceeded(f"Process {pid} did not end within {DOWN_S:.0f} s. See {log}, then: kill -9 {pid}")
        time.sleep(0.05)


def _spawn(here: "Config") -> None:
    """Start `serve` in a session of its own, so that it outlives this terminal."""
    from skerry import instance
    from skerry.serve import environment

    log = instance.log_file(here)
    here.home.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(mode=0o700, exist_ok=True)
    if log.exists() and log.stat().st_size > LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    instance.url_file(here).unlink(missing_ok=True)
    with log.open("ab") as sink:
        child = subprocess.Popen(
            [sys.executable, "-m", "skerry", "serve"],
            env={**os.environ, **environment(here)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,
            cwd="/",
        )
    deadline = time.monotonic() + READY_S
    while not (instance.running_pid(here) and instance.url_file(here).exists()):
        if child.poll() is not None:
            raise Unavailable(f"The server did not start. The end of {log}:\n{_tail(log)}")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"The server did not come up within {READY_S:.0f} s. Look at {log}.")
        time.sleep(0.02)


def _wait_ready(here: "Config", server: "Skerry") -> "CapabilitiesView":
    from skerry import instance

    deadline = time.monotonic() + READY_S
    while True:
        try:
            return server.capabilities()
        except Unavailable as error:
            log = instance.log_file(here)
            if instance.trouble_file(here).exists():
                raise Unavailable(f"The node cannot start: {instance.trouble_file(here).read_text()}") from error
            if instance.running_pid(here) is None:
                raise Unavailable(f"The server ended. The end of {log}:\n{_tail(log)}") from error
            if time.monotonic() > deadline:
                raise Unavailable(f"{error.message}\nThe end of {log}:\n{_tail(log)}") from error
            time.sleep(0.1)


def _tail(log: Path, lines: int = 12) -> str:
    try:
        text = log.read_bytes()[-20_000:].decode("utf-8", "replace")
    except OSError:
        return "(empty)"
    return "\n".join("  " + line for line in text.splitlines()[-lines:])


def _build(server: "Skerry", template: str, steps: list[Step], *, quiet: bool) -> None:
    if server.templates.get(template).status == "ready":
        return
    with step(f"build the template {template}", steps, quiet=quiet):
        shown = -1
        for line in server.templates.build(template):
            # A line for each whole percent: enough to see it move, not so much that a log drowns in it.
            if (percent := int(line.fraction * 100)) > shown:
                shown = percent
                progress_line(f"{'█' * (percent // 5):<20} {percent:3} %  {line.line}")


def _report(here: "Config", runtime: str, shares_kernel: bool, steps: list[Step], output: Format) -> None:
    from skerry import instance

    url = instance.url(here)
    if output is Format.JSON:
        timed = [{"step": one.title, "seconds": round(one.seconds, 4), "note": one.note} for one in steps]
        data_json({"url": url, "pid": instance.running_pid(here), "runtime": runtime, "steps": timed})
        return
    isolation = "which shares this host's kernel" if shares_kernel else "each sandbox with a kernel of its own"
    data(f"\nSkerry is up at {url}. Active runtime: {runtime}, {isolation}.")
    hint(
        '\nNext:\n  eval "$(./skerry client-env)"           address and key for clients\n'
        "  ./skerry run -- python3 -c 'print(42)'   a command in a sandbox of its own\n"
        "  ./skerry create --name box               a sandbox to keep\n"
        "  ./skerry down --all                      end it, and its sandboxes"
    )
