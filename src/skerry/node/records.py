"""What the node knows of its sandboxes, on disk: one append-only file a sandbox, one JSON object a line.

The last line that parses is the record. Appending cannot damage what was written before, so a death in the middle of it
leaves the state before. Holds the secrets that prove us to the sandboxes: root's, mode 0700. Never holds a sandbox's
environment, which may be full of secrets: who runs a command sends it along. Decides nothing.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from skerry.guest.shapes import Json, spec_from, spec_to
from skerry.model.errors import SandboxGone, TooBusy
from skerry.model.ids import SandboxId, is_id
from skerry.model.lifecycle import Cause
from skerry.model.sandbox import Observed, SandboxSpec

_RANGES = 24_000  # ranges of 65,536 user ids, from 0x1000_0000 to 0x6dc0_0000
_FIRST_RANGE = 4096
_ENVIRONMENT = b'"env": {"'  # one that is not empty


class Stage(StrEnum):
    """What there is of a sandbox, and what has been begun.

    CREATING: perhaps half-made. RUNNING: was told to be up. DEAD: all files kept. DESTROYING: all of it has to go.
    STOPPING: all but the workspace has to go. STOPPED: the workspace, which does not change, and nothing else.
    RESUMING: as STOPPED, with what may be half-made around it.
    """

    CREATING = "creating"
    RUNNING = "running"
    DEAD = "dead"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESUMING = "resuming"
    DESTROYING = "destroying"


@dataclass(frozen=True, slots=True)
class Record:
    """One sandbox of this node. `id_base` is set for runtimes with user namespaces; `host_boot` tells a reboot.

    `resumed_from` is set from a resume's beginning on: the generation that it falls back to when it comes to nothing.
    """

    spec: SandboxSpec
    stage: Stage
    runtime: str
    template_digest: str
    template_root: Path
    secret: bytes
    host_boot: str
    id_base: int | None = None
    cause: Cause | None = None
    detail: str = ""
    resumed_from: int | None = None

    @property
    def id(self) -> SandboxId:
        return self.spec.id

    def observed(self) -> Observed:
        if self.stage is Stage.RUNNING:
            return Observed(self.id, self.spec.generation, running=True)
        if self.stage is Stage.STOPPED:
            return Observed(self.id, self.spec.generation, running=False, stopped=True)
        # Of a death the cause says enough; what never lived, or is going, is told by its stage.
        detail = self.detail or ("" if self.stage is Stage.DEAD else str(self.stage))
        return Observed(self.id, self.spec.generation, running=False, cause=self.cause, detail=detail)


def host_boot() -> str:
    """Differs after each boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Records:
    """The files. Small and synchronous: each call takes microseconds, but for `sync`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unsynced: set[SandboxId] = set()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def write(self, record: Record) -> None:
        """Append the record as it is now. Survives the death of this process at once, a power cut after `sync`."""
        line = json.dumps(_to(record)).encode() + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self._path(record.id), flags, 0o600)
        try:
            # A torn line before it, from a death in the middle of a write, must not swallow this one.
            os.write(fd, b"\n" + line if os.fstat(fd).st_size else line)
        finally:
            os.close(fd)
        self._unsynced.add(record.id)

    def sync(self) -> None:
        """Put what was written since the last time on the disk itself. Blocks on it: call it in a thread, often.

        No create waits for this: who makes a sandbox in the second before a power cut has lost its files, too.
        """
        unsynced, self._unsynced = self._unsynced, set()
        for path in [*(self._path(sandbox_id) for sandbox_id in unsynced), *([self._directory] if unsynced else [])]:
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)
                finally:
                    os.close(fd)

    def remove(self, sandbox_id: SandboxId) -> None:
        self._path(sandbox_id).unlink(missing_ok=True)

    def load(self) -> list[Record]:
        """All records. A file without one is removed: its sandbox was never told to anybody."""
        found: list[Record] = []
        for path in sorted(self._directory.glob("*.jsonl")):
            record = _last(path) if is_id(path.stem, "sbx") else None
            if record is None or record.id != path.stem:
                path.unlink(missing_ok=True)
                continue
            if _ENVIRONMENT in path.read_bytes():
                self._write_anew(record)
            found.append(record)
        return found

    def _write_anew(self, record: Record) -> None:
        """Only the last state, without the environment that earlier versions wrote down."""
        fresh = self._path(record.id).with_suffix(".new")
        fresh.touch(mode=0o600)
        fresh.write_bytes(json.dumps(_to(record)).encode() + b"\n")
        fresh.replace(self._path(record.id))
        self._unsynced.add(record.id)

    def _path(self, sandbox_id: SandboxId) -> Path:
        return self._directory / f"{sandbox_id}.jsonl"


def made_in(directory: Path) -> int:
    """How many sandboxes have a record in the directory of a `Records`, whoever has it open. Changes nothing."""
    return sum(is_id(path.stem, "sbx") and _last(path) is not None for path in directory.glob("*.jsonl"))


def moved(record: Record, stage: Stage, cause: Cause | None = None, detail: str = "") -> Record:
    """The record at another stage. An earlier cause stays: what killed it first is what its owner wants to know."""
    return replace(record, stage=stage, cause=record.cause or cause, detail=record.detail or detail)


def stopping(record: Record, least: int = 0) -> Record:
    """The record of one whose compute has to go. A resume that was never told to anybody has not been.

    `least`: the generation that is over now; no create of it may come after.
    """
    generation = record.spec.generation
    if record.stage is Stage.RESUMING and record.resumed_from is not None:
        generation = record.resumed_from
    spec = replace(record.spec, generation=max(generation, least))
    return replace(record, spec=spec, stage=Stage.STOPPING, resumed_from=None)


def stopped(record: Record) -> Record:
    """Its compute is over, and so is what it died of; its range of ids is free for others."""
    return replace(record, stage=Stage.STOPPED, cause=None, detail="", id_base=None)


def free_id_base(records: Iterable[Record], first: int) -> int:
    """The first of a range of 65,536 user ids that no record has, searched from the `first`th on, in a circle.

    Instances start in different places, so that they meet only on a host that is nearly full.
    """
    used = {record.id_base for record in records}
    for number in range(_RANGES):
        base = (_FIRST_RANGE + (first + number) % _RANGES) << 16
        if base not in used:
            return base
    raise TooBusy("Every range of user ids is taken. Destroy sandboxes that are not needed.")


def _last(path: Path) -> Record | None:
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:  # destroyed meanwhile
        return None
    for line in reversed(lines):
        with suppress(ValueError, KeyError, TypeError):
            return _from(json.loads(line))
    return None


def _to(record: Record) -> Json:
    return {
        "spec": {**spec_to(record.spec), "env": {}},
        "stage": record.stage,
        "runtime": record.runtime,
        "template_digest": record.template_digest,
        "template_root": str(record.template_root),
        "secret": record.secret.hex(),
        "host_boot": record.host_boot,
        "id_base": record.id_base,
        "cause": record.cause,
        "detail": record.detail,
        "resumed_from": record.resumed_from,
    }


def _from(told: Mapping[str, Any]) -> Record:
    cause = told["cause"]
    return Record(
        spec=replace(spec_from(told["spec"]), env={}),
        stage=Stage(told["stage"]),
        runtime=told["runtime"],
        template_digest=told["template_digest"],
        template_root=Path(told["template_root"]),
        secret=bytes.fromhex(told["secret"]),
        host_boot=told["host_boot"],
        id_base=told["id_base"],
        cause=None if cause is None else Cause(cause),
        detail=told["detail"],
        resumed_from=told.get("resumed_from"),
    )


def gone(record: Record) -> SandboxGone:
    """What whoever asks for a sandbox that is not there any more is told."""
    if record.stage in (Stage.STOPPING, Stage.STOPPED):
        return SandboxGone(f"Sandbox {record.id} is stopped. Resume it to use it.", cause="stopped")
    cause = record.cause or ("destroyed" if record.stage is Stage.DESTROYING else Cause.RUNTIME_DIED)
    detail = f" {record.detail}" if record.detail else ""
    return SandboxGone(f"Sandbox {record.id} is not running any more ({cause}).{detail}", cause=str(cause))
