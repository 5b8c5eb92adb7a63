"""Records to wire shapes. Pure."""

import base64
from datetime import UTC, datetime, timedelta

from skerry.config import Config
from skerry.control.idleness import Idleness
from skerry.control.outputs import Captured
from skerry.control.progress import Phase, Progress
from skerry.control.shells import ShellResult
from skerry.control.startup import Startup
from skerry.control.usage import Usage
from skerry.model.account import Account
from skerry.model.capability import Capabilities
from skerry.model.capture import Archive
from skerry.model.command import Command, CommandCause, CommandStatus, Exit
from skerry.model.env import REDACTED
from skerry.model.files import Archived, FileInfo
from skerry.model.leak import Leaks
from skerry.model.lifecycle import State
from skerry.model.process import ListeningPort, Process
from skerry.model.sandbox import Sandbox
from skerry.model.shell import ShellSession
from skerry.model.snapshot import Snapshot
from skerry.model.template import TemplateState
from skerry.wire.commands import CommandView
from skerry.wire.files import FileEntry
from skerry.wire.leaks import LeaksView, LeakView
from skerry.wire.processes import PortView, ProcessView
from skerry.wire.sandboxes import (
    ArchiveView,
    CapabilitiesView,
    LimitsView,
    MeView,
    ProbeView,
    ProgressView,
    SandboxLimitsView,
    SandboxView,
    TemplateView,
    UsageView,
)
from skerry.wire.shells import SessionResult, SessionView
from skerry.wire.snapshots import SnapshotView
from skerry.wire.startup import StartupView
from skerry.wire.terminals import TerminalView
from skerry.wire.trees import SkippedEntry, Unpacked

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_PROCESS_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting",
    "T": "stopped",
    "t": "stopped",
    "Z": "zombie",
    "X": "zombie",
    "x": "zombie",
    "I": "idle",
}
_PHASES = {Phase.ARCHIVE: "archiving", Phase.FETCH: "restoring"}
_NS_LIMIT = 2**63  # what a file system can say; more is a lie from inside
_LONGEST_AGE_MS = 10**12


def sandbox_view(
    sandbox: Sandbox, *, busy: bool, idle: Idleness, progress: Progress | None, secrets: bool = True
) -> SandboxView:
    """`secrets`: with the values of its environment, which are for who asks for this one sandbox."""
    status = sandbox.state.value
    if sandbox.state is State.RUNNING:
        status = "active" if busy else "ready"
    return SandboxView(
        id=sandbox.id,
        name=sandbox.name,
        status=status,
        reason=sandbox.cause,
        message=sandbox.detail or None,
        template=sandbox.template,
        runtime=sandbox.runtime,
        memory_mb=sandbox.limits.memory_mb,
        cpu_millis=sandbox.limits.cpu_millis,
        disk_mb=sandbox.limits.disk_mb,
        timeout_seconds=sandbox.timeout_s,
        network_mode=sandbox.network_mode,
        env=dict(sandbox.env) if secrets else dict.fromkeys(sandbox.env, REDACTED),
        capabilities=list(sandbox.capabilities),
        model=None if sandbox.model is None else dict(sandbox.model),
        metadata=dict(sandbox.metadata),
        startup_command=sandbox.startup_command,
        source=sandbox.source,
        idle_timeout_seconds=sandbox.idle_timeout_s,
        reclaim_at=idle.reclaim_at,
        kept_awake_by=list(idle.kept_awake_by),
        archive=None if sandbox.archive is None else _archive_view(sandbox.archive),
        progress=None if progress is None else _progress_view(progress),
        created_at=sandbox.created_at,
        updated_at=sandbox.updated_at,
    )


def _archive_view(archive: Archive) -> ArchiveView:
    return ArchiveView(
        size_bytes=archive.size_bytes,
        stored_bytes=archive.stored_bytes,
        entries=archive.entries,
        skipped=archive.skipped,
    )


def _progress_view(progress: Progress) -> ProgressView:
    return ProgressView(phase=_PHASES[progress.phase], done_bytes=progress.done_bytes, total_bytes=progress.total_bytes)


def snapshot_view(snapshot: Snapshot, *, secrets: bool = True) -> SnapshotView:
    """`secrets`: with the values of its environment, which are for who asks for this one snapshot."""
    archive = snapshot.archive
    return SnapshotView(
        id=snapshot.id,
        name=snapshot.name or "",
        status=snapshot.state.value,
        archived=archive is not None,
        detail=snapshot.detail or None,
        source_sandbox_id=snapshot.source_sandbox_id,
        template=snapshot.template,
        memory_mb=snapshot.limits.memory_mb,
        cpu_millis=snapshot.limits.cpu_millis,
        disk_mb=snapshot.limits.disk_mb,
        timeout_seconds=snapshot.timeout_s,
        network_mode=snapshot.network_mode,
        env=dict(snapshot.env) if secrets else dict.fromkeys(snapshot.env, REDACTED),
        startup_command=snapshot.startup_command,
        idle_timeout_seconds=snapshot.idle_timeout_s,
        capabilities=list(snapshot.capabilities),
        size_bytes=snapshot.size_bytes or 0,
        stored_bytes=None if archive is None else archive.stored_bytes,
        created_at=snapshot.created_at,
        updated_at=snapshot.updated_at,
    )


def command_view(command: Command, captured: Captured | None = None) -> CommandView:
    """With the output in `captured`, or without any. Bytes that are not UTF-8 stand in base64 beside the text."""
    captured = captured or Captured(output_bytes=command.exit.offset if command.exit is not None else 0)
    stdout, exact_stdout = text_of(captured.stdout)
    stderr, exact_stderr = text_of(captured.stderr)
    exit = command.exit
    return CommandView(
        id=command.id,
        sandbox_id=command.sandbox_id,
        command=command.command,
        kind=command.kind,
        status=command.status,
        stdout=stdout,
        stderr=stderr,
        stdout_base64=exact_stdout,
        stderr_base64=exact_stderr,
        stdout_truncated=captured.stdout_truncated,
        stderr_truncated=captured.stderr_truncated,
        output_bytes=captured.output_bytes,
        lost_bytes=captured.lost_bytes,
        exit_code=exit.code if exit is not None else None,
        signal=exit.signal if exit is not None else None,
        reason=reason_of(exit),
        message=(exit.detail or None) if exit is not None else None,
        working_directory=command.working_directory,
        timeout_seconds=command.timeout_s,
        duration_ms=exit.duration_ms if exit is not None else None,
        started_at=command.started_at,
        completed_at=command.completed_at,
    )


def session_view(session: ShellSession) -> SessionView:
    return SessionView(
        id=session.id,
        sandbox_id=session.sandbox_id,
        cwd=_shown(session.state.cwd),
        command_id=session.command_id,
        created_at=session.created_at,
        last_used_at=session.used_at,
    )


def session_result(ended: ShellResult, command: CommandView) -> SessionResult:
    """The command's view, with an exit code in every case."""
    told = command.model_dump(exclude={"id", "exit_code"})
    return SessionResult(
        session_id=ended.session.id,
        command_id=command.id,
        cwd=_shown(ended.session.state.cwd),
        saved=ended.saved,
        exit_code=_exit_code(command),
        **told,
    )


def _exit_code(command: CommandView) -> int:
    """As a shell would tell it; the published client wants a number."""
    if command.exit_code is not None:
        return command.exit_code
    if command.status is CommandStatus.TIMEOUT:
        return 124
    return 126 if command.signal is None else 128 + command.signal


def startup_view(startup: Startup) -> StartupView:
    exit = None if startup.run is None else startup.run.exit
    return StartupView(
        configured=startup.effective is not None,
        command=startup.command,
        effective_command=startup.effective,
        source=startup.source,
        status=startup.status,
        ran_at=startup.ran_at,
        logs=startup.logs.decode("utf-8", "replace"),
        command_id=None if startup.run is None else startup.run.id,
        exit_code=None if exit is None else exit.code,
    )


def terminal_view(terminal: Command) -> TerminalView:
    exit, size = terminal.exit, terminal.terminal
    assert size is not None
    return TerminalView(
        id=terminal.id,
        sandbox_id=terminal.sandbox_id,
        name=terminal.name,
        command=terminal.command,
        status=terminal.status,
        cols=size.cols,
        rows=size.rows,
        working_directory=terminal.working_directory,
        exit_code=exit.code if exit is not None else None,
        signal=exit.signal if exit is not None else None,
        reason=reason_of(exit),
        message=(exit.detail or None) if exit is not None else None,
        started_at=terminal.started_at,
        completed_at=terminal.completed_at,
    )


def reason_of(exit: Exit | None) -> CommandCause | None:
    """Why a command failed; None for one that runs, or ended as programs do."""
    if exit is not None and exit.cause is None and exit.signal is not None and not exit.timed_out:
        return CommandCause.SIGNAL
    return exit.cause if exit is not None else None


def text_of(data: bytes) -> tuple[str, str | None]:
    """The text to show, and the exact bytes in base64 when the text does not say them all."""
    try:
        return data.decode(), None
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), base64.b64encode(data).decode()


def file_entry(info: FileInfo) -> FileEntry:
    name, exact = text_of(_raw(info.name))
    return FileEntry(
        name=name,
        name_base64=exact,
        path=_shown(info.path),
        type=info.type,
        size_bytes=info.size_bytes,
        mode=f"{info.mode & 0o7777:04o}",
        uid=info.uid,
        gid=info.gid,
        modified_at=_time_of(info.mtime_ns),
        target=None if info.target is None else _shown(info.target),
    )


def shown_with_bytes(path: str) -> dict[str, str]:
    """A path to show, as members; with its exact bytes where the text does not say them all."""
    text, exact = text_of(_raw(path))
    return {"path": text} if exact is None else {"path": text, "path_base64": exact}


def unpacked_view(archived: Archived) -> Unpacked:
    return Unpacked(
        count=archived.count,
        size_bytes=archived.size_bytes,
        skipped=[SkippedEntry(**shown_with_bytes(each.path), reason=each.reason) for each in archived.skipped],
        skipped_count=archived.skipped_count,
    )


def process_view(process: Process, now: datetime) -> ProcessView:
    return ProcessView(
        pid=process.pid,
        ppid=process.ppid,
        uid=process.uid,
        name=_shown(process.name),
        argv=[_shown(argument) for argument in process.argv],
        state=_PROCESS_STATES.get(process.state, "unknown"),
        cpu_ms=process.cpu_ms,
        memory_bytes=process.rss_bytes,
        started_at=max(_EPOCH, now - timedelta(milliseconds=min(process.age_ms, _LONGEST_AGE_MS))),
        command_id=process.command_id,
    )


def port_view(port: ListeningPort) -> PortView:
    return PortView(
        port=port.port,
        address=port.address,
        family=port.family,
        uid=port.uid,
        pid=port.pid,
        command_id=port.command_id,
    )


def template_view(state: TemplateState) -> TemplateView:
    return TemplateView(
        id=state.name,
        name=state.name,
        description=state.description,
        source_type="builtin",
        builtin=True,
        status=state.status,
        digest=state.digest,
        size_bytes=state.size_bytes,
        error=state.error,
    )


def capabilities_view(capabilities: Capabilities) -> CapabilitiesView:
    return CapabilitiesView(
        provider=capabilities.provider,
        runtime=capabilities.runtime,
        runtime_version=capabilities.runtime_version,
        shares_kernel=capabilities.shares_kernel,
        network_modes=list(capabilities.network_modes),
        keeps_memory=capabilities.keeps_memory,
        disk_limit=capabilities.disk_limit,
        memory_mb=capabilities.memory_mb,
        cpu_millis=capabilities.cpu_millis,
        disk_mb=capabilities.disk_mb,
        storage=capabilities.storage,
        probes=[ProbeView(name=p.name, ok=p.ok, detail=p.detail, remedy=p.remedy) for p in capabilities.probes],
    )


def me_view(account: Account) -> MeView:
    return MeView(id=account.id, email=None, name=account.name, plan=account.plan, created_at=account.created_at)


def usage_view(usage: Usage, config: Config) -> UsageView:
    return UsageView(
        plan=usage.account.plan,
        sandboxes=dict(usage.sandboxes),
        running_commands=usage.running_commands,
        memory_mb=usage.memory_mb,
        cpu_millis=usage.cpu_millis,
        disk_mb=usage.disk_mb,
        # There is one plan, `unlimited`; what a single sandbox may have is the server's setting.
        limits=LimitsView(sandboxes=None, running_commands=None, memory_mb=None, cpu_millis=None, disk_mb=None),
        sandbox_limits=SandboxLimitsView(
            memory_mb=config.max_memory_mb, disk_mb=config.pool_mb, timeout_seconds=config.max_command_timeout_s
        ),
    )


def _raw(text: str) -> bytes:
    # Surrogates that surrogateescape did not make come from a hostile sbxd: they must not break the answer.
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace")


def _shown(text: str) -> str:
    return _raw(text).decode("utf-8", "replace")


def _time_of(mtime_ns: int) -> str:
    clamped = max(-_NS_LIMIT, min(_NS_LIMIT, mtime_ns))
    return (_EPOCH + timedelta(microseconds=clamped // 1000)).isoformat()


def leaks_view(found: Leaks) -> LeaksView:
    views = [
        (leak.waiting, LeakView(kind=leak.kind.value, name=leak.name, size_bytes=leak.size_bytes, fate=leak.fate))
        for leak in found.found
    ]
    return LeaksView(
        leaks=[view for waiting, view in views if not waiting],
        waiting=[view for waiting, view in views if waiting],
        unchecked=list(found.unchecked),
    )
