"""How a running server is, by its own word and by what it does: the part of `doctor` that asks it. Starts nothing."""

import os
import time
from typing import TYPE_CHECKING, Any

from skerry.cli.output import printable
from skerry.model.capability import Probe
from skerry.model.errors import SkerryError

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.sdk import Skerry

ANSWER_S = 10.0
MEMORY_MB = 128
LOOKED_AT_ANEW = ("pool", "object store")  # by whoever puts these beside what the server says


def server_probes(here: "Config", pid: int) -> "tuple[list[Probe], dict[str, Any], Config]":
    """The findings for a person and for a program, and the settings that the server runs with (`here` if untold)."""
    from skerry import instance
    from skerry.cli.launch import changes, shown
    from skerry.config import Config
    from skerry.sdk import Skerry

    said = instance.published(here)
    told: dict[str, Any] = {"running": True, "pid": pid, "url": None, "healthy": False, "changed": []}
    if said is None or said.pid != pid:
        remedy = "`skerry up` restarts it. Its sandboxes go on."
        detail = f"process {pid} runs, and is starting or of another version: it has not said where it listens"
        return [Probe("server", False, detail, remedy)], told, here
    told["url"] = said.url
    probes: list[Probe] = []
    if changed := changes(here, said):
        told["changed"] = list(changed)
        detail = f"changed since the server started: {shown(changed)}"
        probes.append(Probe("settings", False, detail, "`skerry up` restarts it with them.", required=False))
    try:
        running = Config.model_validate(said.settings)
    except ValueError:  # of another version
        running = here
    try:
        with Skerry(said.url, instance.key(here), timeout_s=ANSWER_S, retries=0) as server:
            return [*_answers(server, pid, said.url, told), *probes], told, running
    except SkerryError as error:
        why = instance.trouble(here) or error.message
        told["error"] = why
        remedy = f"Mend that, then `skerry up`. The log: {instance.log_file(here)}"
        return [Probe("server", False, f"process {pid} at {said.url}: {why}", remedy), *probes], told, running


def _answers(server: "Skerry", pid: int, url: str, told: dict[str, Any]) -> list[Probe]:
    """Ask for the capabilities, and for a sandbox. Raises SkerryError when the server does not answer."""
    has = server.capabilities()
    kernel = "which shares this host's kernel" if has.shares_kernel else "each sandbox with a kernel of its own"
    told |= {"healthy": True, "runtime": has.runtime, "runtime_version": has.runtime_version}
    up = Probe("server", True, f"process {pid} at {url}, on {has.runtime} {has.runtime_version}, {kernel}")
    made = _create(server)
    told["create"] = {"ok": made.ok, "detail": made.detail}
    # What it found at its start. All that it needs is proved by the sandbox it makes.
    told_then = [one for one in has.probes if one.name not in LOOKED_AT_ANEW]
    rest = [Probe(one.name, one.ok, one.detail, one.remedy, required=False) for one in told_then]
    return [up, made, *rest]


def _create(server: "Skerry") -> Probe:
    """Have it make a sandbox, small and for a moment."""
    name = "create a sandbox"
    template = next((one.name for one in server.templates.list() if one.status == "ready"), None)
    if template is None:
        return Probe(name, False, "not tried: no template is built yet", "`skerry up` builds one.", required=False)
    begun = time.perf_counter()
    try:
        server.create(template, name=f"doctor-{os.getpid()}", memory_mb=MEMORY_MB).destroy()
    except SkerryError as error:
        return Probe(name, False, printable(error.message))
    return Probe(name, True, f"of {template}: made and destroyed in {(time.perf_counter() - begun) * 1000:.0f} ms")
