"""The model's nouns as JSON, as API process and node exchange them on the node's socket. Pure functions.

The two ends are of one version and trust each other; nothing from inside a sandbox is parsed here. `*_to` gives what
`json.dumps` takes, `*_from` gives the noun back, equal to the one that went in.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from typing import Any

from skerry.model import errors
from skerry.model.capability import Capabilities, Health, Probe
from skerry.model.capture import Archive, Held, Moved, Swept, Vault
from skerry.model.command import CommandCause, ExecSpec, Exit, Keep, TerminalSize
from skerry.model.files import Archived, ArchiveLimits, ChangeKind, FileChange, FileInfo, FileType, Skipped
from skerry.model.ids import ArchiveId, CommandId, SandboxId, TreeId, VaultId
from skerry.model.leak import Leak, LeakKind
from skerry.model.lifecycle import Cause
from skerry.model.metrics import Sample
from skerry.model.process import ListeningPort, Process
from skerry.model.sandbox import Limits, NetworkMode, Observed, Placement, SandboxSpec
from skerry.model.template import BuildProgress, TemplateState, TemplateStatus

Json = dict[str, Any]


def _but(told: Mapping[str, Any], **changed: object) -> Json:
    return {**told, **changed}


_ERRORS: dict[str, type[errors.SkerryError]] = {
    kind.__name__: kind
    for kind in (
        errors.SkerryError,
        errors.Invalid,
        errors.Unauthorized,
        errors.NotFound,
        errors.Conflict,
        errors.LimitExceeded,
        errors.Refused,
        errors.Unavailable,
        errors.ProtocolError,
        errors.DeadlineExceeded,
    )
}


def error_to(error: errors.SkerryError) -> Json:
    told: Json = {"kind": type(error).__name__, "code": error.code, "message": error.message, "field": error.field}
    if isinstance(error, errors.TooBusy):
        told["retry_after_s"] = error.retry_after_s
    elif isinstance(error, errors.SandboxGone):
        told["cause"] = error.cause
    elif isinstance(error, errors.GuestError):
        told["errno"] = error.errno
    return told


def error_from(told: Mapping[str, Any]) -> errors.SkerryError:
    kind, message, code = told["kind"], told["message"], told["code"]
    if kind == "TooBusy":
        return errors.TooBusy(message, retry_after_s=told["retry_after_s"], code=code)
    if kind == "SandboxGone":
        return errors.SandboxGone(message, cause=told["cause"])
    if kind == "GuestError":
        return errors.GuestError(code, message, errno=told["errno"])
    return _ERRORS.get(kind, errors.SkerryError)(message, code=code, field=told["field"])


def spec_to(spec: SandboxSpec) -> Json:
    return {**asdict(spec), "env": dict(spec.env)}


def spec_from(told: Mapping[str, Any]) -> SandboxSpec:
    return SandboxSpec(
        id=SandboxId(told["id"]),
        generation=told["generation"],
        template=told["template"],
        limits=Limits(**told["limits"]),
        network_mode=NetworkMode(told["network_mode"]),
        hostname=told["hostname"],
        env=told["env"],
    )


def placement_to(placement: Placement) -> Json:
    return {"runtime": placement.runtime, "template_digest": placement.template_digest}


def placement_from(told: Mapping[str, Any]) -> Placement:
    return Placement(**told)


def observed_to(seen: Observed) -> Json:
    return asdict(seen)


def observed_from(told: Mapping[str, Any]) -> Observed:
    cause = told["cause"]
    return Observed(**_but(told, id=SandboxId(told["id"]), cause=None if cause is None else Cause(cause)))


def capabilities_to(capabilities: Capabilities) -> Json:
    return asdict(capabilities)


def capabilities_from(told: Mapping[str, Any]) -> Capabilities:
    probes = tuple(Probe(**probe) for probe in told["probes"])
    return Capabilities(**_but(told, network_modes=tuple(told["network_modes"]), probes=probes))


def exec_to(spec: ExecSpec) -> Json:
    """Members that have their default are left out: this is the hot path."""
    told: Json = {"id": spec.id}
    if spec.argv:
        told["argv"] = spec.argv
    if spec.env:
        told["env"] = dict(spec.env)
    for name in ("shell", "cwd", "user", "stdin", "timeout_s"):
        value = getattr(spec, name)
        if value is not None and value is not False:
            told[name] = value
    if spec.tty is not None:
        told["tty"] = size_to(spec.tty)
    if spec.keep is not Keep.HEAD:
        told["keep"] = spec.keep
    return told


def exec_from(told: Mapping[str, Any]) -> ExecSpec:
    return ExecSpec(
        id=CommandId(told["id"]),
        argv=tuple(told.get("argv", ())),
        shell=told.get("shell"),
        cwd=told.get("cwd"),
        env=told.get("env", {}),
        user=told.get("user"),
        stdin=told.get("stdin", False),
        tty=size_from(told["tty"]) if "tty" in told else None,
        timeout_s=told.get("timeout_s"),
        keep=Keep(told.get("keep", Keep.HEAD)),
    )


def size_to(size: TerminalSize) -> Json:
    return {"cols": size.cols, "rows": size.rows}


def size_from(told: Mapping[str, Any]) -> TerminalSize:
    return TerminalSize(told["cols"], told["rows"])


def exit_to(exit: Exit) -> Json:
    return {
        "code": exit.code,
        "signal": exit.signal,
        "timed_out": exit.timed_out,
        "offset": exit.offset,
        "duration_ms": exit.duration_ms,
        "cause": exit.cause,
        "detail": exit.detail,
    }


def exit_from(told: Mapping[str, Any]) -> Exit:
    cause = told["cause"]
    return Exit(**_but(told, cause=None if cause is None else CommandCause(cause)))


def info_to(info: FileInfo) -> Json:
    return {
        "name": info.name,
        "path": info.path,
        "type": info.type,
        "size_bytes": info.size_bytes,
        "mode": info.mode,
        "uid": info.uid,
        "gid": info.gid,
        "mtime_ns": info.mtime_ns,
        "target": info.target,
    }


def info_from(told: Mapping[str, Any]) -> FileInfo:
    return FileInfo(**_but(told, type=FileType(told["type"])))


def change_to(change: FileChange) -> Json:
    return {"kind": change.kind, "path": change.path}


def change_from(told: Mapping[str, Any]) -> FileChange:
    return FileChange(ChangeKind(told["kind"]), told["path"])


def limits_to(limits: ArchiveLimits) -> Json:
    return asdict(limits)


def limits_from(told: Mapping[str, Any]) -> ArchiveLimits:
    return ArchiveLimits(**told)


def archived_to(archived: Archived) -> Json:
    return asdict(archived)


def archived_from(told: Mapping[str, Any]) -> Archived:
    return Archived(**_but(told, skipped=tuple(Skipped(**each) for each in told["skipped"])))


def process_to(process: Process) -> Json:
    return asdict(process)


def process_from(told: Mapping[str, Any]) -> Process:
    return Process(**_but(told, argv=tuple(told["argv"])))


def port_to(port: ListeningPort) -> Json:
    return asdict(port)


def port_from(told: Mapping[str, Any]) -> ListeningPort:
    return ListeningPort(**told)


def sample_to(sample: Sample) -> list[int | None]:
    """An array, since a day of them is told at once."""
    _, *counts = astuple(sample)
    return [round(sample.at.timestamp() * 1000), *counts]


def sample_from(told: Sequence[Any]) -> Sample:
    return Sample(datetime.fromtimestamp(told[0] / 1000, UTC), *told[1:])


def health_to(health: Health) -> Json:
    return asdict(health)


def health_from(told: Mapping[str, Any]) -> Health:
    return Health(**told)


def template_to(template: TemplateState) -> Json:
    return asdict(template)


def template_from(told: Mapping[str, Any]) -> TemplateState:
    return TemplateState(**_but(told, status=TemplateStatus(told["status"])))


def progress_to(progress: BuildProgress) -> Json:
    return asdict(progress)


def progress_from(told: Mapping[str, Any]) -> BuildProgress:
    return BuildProgress(told["template"], told["fraction"], told["line"])


def vault_to(vault: Vault) -> Json:
    return {"id": vault.id, "key": vault.key.hex()}


def vault_from(told: Mapping[str, Any]) -> Vault:
    return Vault(VaultId(told["id"]), bytes.fromhex(told["key"]))


def archive_to(archive: Archive) -> Json:
    return asdict(archive)


def archive_from(told: Mapping[str, Any]) -> Archive:
    return Archive(**_but(told, id=ArchiveId(told["id"])))


def moved_to(moved: Moved) -> Json:
    return asdict(moved)


def moved_from(told: Mapping[str, Any]) -> Moved:
    made = told["archive"]
    return Moved(**_but(told, archive=None if made is None else archive_from(made)))


def held_to(held: Held) -> Json:
    return {**asdict(held), "created_at": held.created_at.timestamp()}


def held_from(told: Mapping[str, Any]) -> Held:
    created_at = datetime.fromtimestamp(told["created_at"], UTC)
    return Held(**_but(told, id=TreeId(told["id"]), created_at=created_at))


def leak_to(leak: Leak) -> Json:
    return asdict(leak)


def leak_from(told: Mapping[str, Any]) -> Leak:
    return Leak(**_but(told, kind=LeakKind(told["kind"])))


def swept_to(swept: Swept) -> Json:
    return asdict(swept)


def swept_from(told: Mapping[str, Any]) -> Swept:
    return Swept(**told)
