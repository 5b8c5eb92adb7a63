"""`doctor` and `client-env`: what this host can do, and how a client reaches the server on it."""

import asyncio
import os
import shlex
from typing import TYPE_CHECKING

import typer

from skerry.cli.connection import config
from skerry.cli.output import Format, OutputOption, console, data, data_json
from skerry.model.errors import Refused

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.model.capability import Probe


def register(app: typer.Typer) -> None:
    app.command()(doctor)
    app.command("client-env")(client_env)


def doctor(output: OutputOption = Format.TEXT) -> None:
    """Say what this host can and cannot do, what failed, and how to mend it. Fails where no sandbox can run."""
    if os.geteuid() != 0:
        raise Refused("The probes boot a sandbox, mount and make a network: run `skerry doctor` as root.")
    here = config()
    with console().status("Trying things out on this host"):
        probes = asyncio.run(_probes(here))
    ready = can_run(here, probes)
    if output is Format.JSON:
        shown = [{"name": p.name, "ok": p.ok, "detail": p.detail, "remedy": p.remedy} for p in probes]
        data_json({"ready": ready, "runtime": here.runtime, "probes": shown})
    else:
        _show(here, probes, ready)
    if not ready:
        raise typer.Exit(1)


async def _probes(here: "Config") -> "list[Probe]":
    from skerry.serve import probes

    return await probes(here)


def can_run(here: "Config", probes: "list[Probe]") -> bool:
    """Whether a sandbox can run here: the runtime of this instance works, and so does all that is not a runtime."""
    needed = [probe for probe in probes if probe.required]
    return any(probe.name == here.runtime for probe in needed) and all(probe.ok for probe in needed)


def _show(here: "Config", probes: "list[Probe]", ready: bool) -> None:
    for probe in probes:
        mark = "✓" if probe.ok else "✗" if probe.required else "–"
        data(f"{mark} {probe.name:<22} {probe.detail}")
        if not probe.ok and probe.remedy:
            data(f"  {'':<22} → {probe.remedy}")
    if ready:
        data(f"\nSandboxes can run here, on {here.runtime}.")
    else:
        data(f"\nNo sandbox can run here on {here.runtime} until what is marked ✗ is mended.")


def client_env() -> None:
    """Print `export` lines for a client of the running server: eval "$(skerry client-env)"."""
    from skerry import instance

    here = config()
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
