"""Starts the server of this machine in the background, or anew where it runs with other settings; and ends it.

One caller at a time: who comes second waits, and finds what the first has done. Sandboxes go on through all of it.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skerry.cli.output import hint
from skerry.model.errors import Conflict, DeadlineExceeded, Refused, SkerryError, Unavailable

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.instance import Running
    from skerry.wire.sandboxes import CapabilitiesView

READY_S = 60.0
DOWN_S = 60.0
WAIT_S = 2 * READY_S + DOWN_S + 30  # what the one before may take: end, start, and start again as it was
TELL_S = 1.0
SAY_S = 10.0  # from taking its place to saying so, a server needs milliseconds
LOG_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Started:
    """A server that answers. `changed`: the settings that it had to be restarted for, with the value before and now."""

    capabilities: "CapabilitiesView"
    note: str
    changed: Mapping[str, tuple[Any, Any]] = field(default_factory=dict[str, tuple[Any, Any]])


def start(here: "Config") -> Started:
    """Have a server run with these settings and this version, and wait until it answers. Called twice: it runs already.

    Raises:
        Refused: It cannot run so, as could be told before; a server that runs was left alone.
        Unavailable, DeadlineExceeded: It was tried. One that ran before with other settings runs again with those.
    """
    from skerry import instance
    from skerry.serve import check

    with alone(here):
        pid = instance.running_pid(here)
        if pid is None:
            check(here)
            return _fresh(here, "started")
        before = _said(here, pid)
        changed = {} if before is None else changes(here, before)
        why = _why_anew(here, before, changed)
        if not why:
            return Started(_wait_ready(here, 0), f"runs already, process {pid}")
        check(here)
        worked = not instance.trouble(here)
        stop(here, pid)
        try:
            return _fresh(here, f"restarted: {why}", changed)
        except SkerryError as error:
            if before is not None and before.revision == instance.installed_revision(here) and changed and worked:
                raise _put_back(before, error, changed) from error
            raise


def _said(here: "Config", pid: int) -> "Running | None":
    """What the server of this pid says of itself. One that begins just now is waited for; None: it says nothing."""
    from skerry import instance

    deadline = time.monotonic() + SAY_S
    while (said := instance.published(here)) is None or said.pid != pid:
        if time.monotonic() > deadline or instance.running_pid(here) != pid:
            return None
        time.sleep(0.05)
    return said


def _why_anew(here: "Config", before: "Running | None", changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Why the server that runs has to be restarted; empty where it has not."""
    from skerry import instance

    if before is None:
        return "it did not say how it runs"
    reasons: list[str] = []
    if before.revision != instance.installed_revision(here):
        reasons.append("new version")
    if changed:
        reasons.append(f"changed settings ({shown(changed)})")
    if not reasons and instance.trouble(here):
        reasons.append("its last start had failed")
    return ", ".join(reasons)


def changes(here: "Config", before: "Running") -> dict[str, tuple[Any, Any]]:
    """Settings that differ from those that a server runs with: each with the value there and the one here.

    One that only one of two versions knows has not been changed by anybody. Of a secret one it is told that it differs.
    """
    now = here.model_dump(mode="json")
    names = sorted(now.keys() & before.settings.keys())
    differ = {name: (before.settings[name], now[name]) for name in names if before.settings[name] != now[name]}
    secret = {name for name, field in type(here).model_fields.items() if not field.repr}
    return {name: ("(hidden)", "(hidden)") if name in secret else values for name, values in differ.items()}


def shown(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Changed settings, for a person."""
    return ", ".join(f"{name} {_value(was)} → {_value(now)}" for name, (was, now) in changed.items())


def _value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) if value != "" else "(empty)"


def _put_back(before: "Running", error: SkerryError, changed: Mapping[str, tuple[Any, Any]]) -> SkerryError:
    """Start the server that worked again; the error to raise: the first one, and what runs now."""
    from skerry import instance
    from skerry.config import Config

    old = Config.model_validate(before.settings)
    try:
        if (pid := instance.running_pid(old)) is not None:
            stop(old, pid)
        _fresh(old, "")
    except SkerryError as second:
        return Unavailable(f"{error.message}\nNor did it start again as it was before: {second.message}")
    message = f"{error.message}\nThe server runs as it did before, without the change of {', '.join(changed)}."
    return Unavailable(message, code=error.code)


def _fresh(here: "Config", note: str, changed: Mapping[str, tuple[Any, Any]] | None = None) -> Started:
    begun_at = _spawn(here)
    return Started(_wait_ready(here, begun_at), note, changed or {})


@contextmanager
def alone(here: "Config") -> Generator[None]:
    """Nobody else starts or ends the server of this home meanwhile. Who holds it for others is told to a person.

    Raises:
        Conflict: Somebody else does not come to an end.
        Refused: The home cannot be written.
    """
    path = here.run_dir / "up.lock"
    try:
        here.run_dir.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Refused(f"{here.home} cannot be used: {error}. Mend that, or point SKERRY_HOME elsewhere.") from error
    try:
        _wait_for(handle, path)
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int, path: Path) -> None:
    begun, told = time.monotonic(), False
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - begun
        holder = os.pread(handle, 32, 0).decode(errors="replace").strip() or "unknown"
        if waited > WAIT_S:
            raise Conflict(f"Another `skerry up` or `down` (process {holder}) holds {path} for {waited:.0f} s. End it.")
        if waited > TELL_S and not told:
            hint(f"  another `skerry up` or `down` is at work (process {holder}); waiting for it")
            told = True
        time.sleep(0.05)


def stop(here: "Config", pid: int) -> None:
    """End the server, and wait until it has. Safe to call when it ends by itself.

    Raises:
        DeadlineExceeded: It does not; what to do.
    """
    from skerry import instance

    deadline = time.monotonic() + DOWN_S
    try:
        os.kill(pid, signal.SIGTERM)
    except ProcessLookupError:
        return
    while instance.running_pid(here) == pid:
        if time.monotonic() > deadline:
            log = instance.log_file(here)
            raise DeadlineExceeded(f"Process {pid} did not end within {DOWN_S:.0f} s. See {log}, then: kill -9 {pid}")
        time.sleep(0.05)


def _spawn(here: "Config") -> int:
    """Start `serve` in a session of its own, so that it outlives this terminal, and wait until it listens.

    Where in the log it has begun.
    """
    from skerry import instance
    from skerry.serve import environment

    log = instance.log_file(here)
    with _opened_log(log) as sink:
        begun_at = sink.tell()
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
    while True:
        # Its own word: that of a server before it, which was killed, may lie there until it has taken its place.
        said = instance.published(here)
        if said is not None and said.pid == child.pid and instance.url_file(here).exists():
            return begun_at
        if child.poll() is not None:
            if (other := instance.running_pid(here)) is not None:
                raise Conflict(f"Another server was started from {here.home} meanwhile (process {other}). Try again.")
            raise Unavailable(f"The server did not start. The end of {log}:\n{tail(log, begun_at)}")
        if time.monotonic() > deadline:
            raise DeadlineExceeded(f"The server did not come up within {READY_S:.0f} s. Look at {log}.")
        time.sleep(0.02)


@contextmanager
def _opened_log(log: Path) -> Generator[Any]:
    try:
        log.parent.mkdir(mode=0o700, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        sink = log.open("ab")
    except OSError as error:
        raise Refused(f"{log} cannot be written: {error}.") from error
    with sink:
        yield sink


def _wait_ready(here: "Config", log_from: int) -> "CapabilitiesView":
    from skerry import instance
    from skerry.sdk import Skerry

    deadline = time.monotonic() + READY_S
    # Short patience: the socket takes connections from the first moment, long before anybody answers.
    with Skerry(instance.url(here), instance.key(here), timeout_s=3, retries=0) as server:
        while True:
            try:
                return server.capabilities()
            except Unavailable as error:
                log = instance.log_file(here)
                if trouble := instance.trouble(here):
                    raise Unavailable(trouble) from error
                if instance.running_pid(here) is None:
                    raise Unavailable(f"The server ended. The end of {log}:\n{tail(log, log_from)}") from error
                if time.monotonic() > deadline:
                    raise Unavailable(f"{error.message}\nThe end of {log}:\n{tail(log, log_from)}") from error
                time.sleep(0.1)


def tail(log: Path, begun_at: int, lines: int = 12) -> str:
    """The last lines that were logged behind `begun_at`: what came before tells of an earlier server."""
    try:
        held = log.read_bytes()
    except OSError:
        return "(empty)"
    if len(held) >= begun_at:  # else it was turned over
        held = held[begun_at:]
    text = held[-20_000:].decode("utf-8", "replace")
    return "\n".join("  " + line for line in text.splitlines()[-lines:]) or "(empty)"
