"""`doctor` and `client-env`: what this host can do and how its server is, and how a client reaches that server."""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from skerry.cli.connection import client, config, require_server
from skerry.cli.output import Format, OutputOption, console, data, data_json, drawn
from skerry.model.capability import Probe
from skerry.model.errors import Invalid, Refused

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.wire.leaks import LeaksView


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command("client-env")(client_env)


@dataclass(frozen=True, slots=True)
class Report:
    """What `doctor` found. `server` and `pool` tell a program what some of the probes tell a person."""

    runtime: str
    probes: Sequence[Probe]
    server: dict[str, Any]
    pool: dict[str, Any] | None

    @property
    def ready(self) -> bool:
        return can_run(self.runtime, self.probes)


LeaksOption = Annotated[
    bool, typer.Option("--leaks", help="Ask the running server what is held and on no record, and fail if anything is.")
]


def doctor(leaks: LeaksOption = False, output: OutputOption = Format.TEXT) -> None:
    """Say what this host can and cannot do, how its server is, and how to mend it. Fails where no sandbox can run.

    A running server is asked, and has to make a sandbox; where none runs, everything is tried in places of its own.
    """
    if leaks:
        _leaks(output)
        return
    require_server()
    if os.geteuid() != 0:
        raise Refused("The probes boot a sandbox, mount and make a network: run `skerry doctor` as root.")
    with console().status("Trying things out on this host"):
        report = examine()
    if output is Format.JSON:
        shown = [{"name": p.name, "ok": p.ok, "detail": p.detail, "remedy": p.remedy} for p in report.probes]
        about = {"ready": report.ready, "runtime": report.runtime, "server": report.server, "pool": report.pool}
        data_json({**about, "probes": shown})
    else:
        show(report)
    if not report.ready:
        raise typer.Exit(1)


def _leaks(output: Format) -> None:
    with client() as server:
        found, url = server.leaks(), server.url
    if output is Format.JSON:
        data_json({"clean": not found.leaks, **found.model_dump(mode="json")})
    else:
        _show_leaks(found, url)
    if found.leaks:
        raise typer.Exit(1)


def _show_leaks(found: "LeaksView", url: str) -> None:
    for mark, leaks in (("✗", found.leaks), ("–", found.waiting)):
        for leak in leaks:
            size = "" if leak.size_bytes is None else f" ({leak.size_bytes} bytes)"
            data(drawn(f"{mark} {leak.kind:<12} {leak.name}{size}"))
            data(drawn(f"  {'':<12} → {leak.fate}"))
    for word in found.unchecked:
        data(drawn(f"– {'not looked at':<12} {word}"))
    if found.leaks:
        data(f"\n{len(found.leaks)} leaked at {url}.")
    else:
        looked = " of what could be looked at" if found.unchecked else ""
        data(f"Nothing leaks{looked} at {url}.")


def examine() -> Report:
    """Look at the instance of this environment, and at its host. Root only."""
    import asyncio  # only here: it is slow to load

    from skerry import instance
    from skerry.cli.server_probes import server_probes
    from skerry.inspection import host_probes, idle_probes, pool_probe, store_probe

    here, settings = _settings()
    pid = instance.running_pid(here)
    pool, pool_told = pool_probe(here)
    if pid is None:
        answers, server = [Probe("server", True, "none runs", required=False)], {"running": False}
        rest = [*_start_probes(here), *asyncio.run(idle_probes(here))]
    else:
        answers, server, here = server_probes(here, pid)
        rest = []
    store = asyncio.run(store_probe(here))
    host = asyncio.run(host_probes(here))
    return Report(here.runtime, [*settings, *answers, pool, store, *rest, *host], server, pool_told)


def _settings() -> "tuple[Config, list[Probe]]":
    """The settings in force. Where they cannot be read, that is the finding, and the rest is found all the same."""
    from skerry.config import locate

    try:
        return config(), []
    except Invalid as error:
        return locate(), [Probe("settings", False, error.message)]


def _start_probes(here: "Config") -> list[Probe]:
    from skerry.serve import check

    try:
        check(here)
    except Refused as error:
        return [Probe("start", False, error.message)]
    return []


def can_run(runtime: str, probes: Sequence[Probe]) -> bool:
    """Whether a sandbox can run here: the runtime of this instance works, and so does all that is not a runtime."""
    needed = [probe for probe in probes if probe.required]
    return any(probe.name == runtime for probe in needed) and all(probe.ok for probe in needed)


def show(report: Report) -> None:
    """What was found, a line each, and what follows from it."""
    for probe in report.probes:
        mark = "✓" if probe.ok else "✗" if probe.required else "–"
        data(drawn(f"{mark} {probe.name:<22} {probe.detail}"))
        if not probe.ok and probe.remedy:
            data(drawn(f"  {'':<22} → {probe.remedy}"))
    data("")
    if report.ready:
        data(f"Sandboxes can run here, on {report.runtime}.")
    else:
        data(drawn(f"No sandbox can run here on {report.runtime} until what is marked ✗ is mended."))


def client_env() -> None:
    """Print `export` lines for a client of the running server: eval "$(skerry client-env)"."""
    from skerry import instance
    from skerry.config import locate

    here = locate()
    url, key = instance.url(here), instance.key(here)
    values = {
        "SKERRY_URL": url,
        "SKERRY_API_KEY": key,
        "SKERRY_PIDFILE": str(instance.pid_file(here)),
        "FLAX_BASE_URL": url,
        "FLAX_API_KEY": key,
    }
    for name, value in values.items():
        data(f"export {name}={shlex.quote(value)}")
