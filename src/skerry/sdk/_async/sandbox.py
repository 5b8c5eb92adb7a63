"""One sandbox, as its owner holds it."""

from __future__ import annotations  # else a union with the class itself is text, which the generator leaves as it is

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from skerry.model.errors import Conflict, DeadlineExceeded, Invalid, NotFound, SkerryError, Unavailable
from skerry.sdk._async.commands import AsyncCommands
from skerry.sdk._async.files import AsyncFiles
from skerry.sdk._async.git import AsyncGit
from skerry.sdk._async.http import AsyncHttp, segment
from skerry.sdk._async.moving import OnProgress, while_stopping
from skerry.sdk._async.shells import AsyncShell
from skerry.sdk._async.snapshots import AsyncSnapshot
from skerry.sdk._async.startup import AsyncStartup
from skerry.sdk._async.terminals import AsyncTerminal, AsyncTerminals
from skerry.sdk.errors import error_of
from skerry.sdk.requests import LEFT_OUT, Left, answer_of, body_of, request_of
from skerry.sdk.results import CommandResult
from skerry.wire.metrics import MetricsView
from skerry.wire.processes import PortList, PortView, ProcessList, ProcessView
from skerry.wire.sandboxes import (
    STOP_WAIT_S,
    ChangeSandbox,
    ForkFailed,
    ForkList,
    ForkSandbox,
    SandboxView,
    SetEnv,
    StopSandbox,
)
from skerry.wire.shells import SessionList, SessionView
from skerry.wire.snapshots import CreateSnapshot, SnapshotView

CREATE_S = 900.0  # a template may have to be built first, or files to be fetched from the object store
ANSWER_S = 60.0


class AsyncSandbox:
    """`commands`, `files`, `git`, `startup` and `terminals` act inside; a stopped one is resumed for them first, by
    the server. As a context manager it is destroyed at the end.

    `info` is the last answer about it, and so are the properties: `refresh` asks again.
    """

    def __init__(self, http: AsyncHttp, info: SandboxView) -> None:
        self._http = http
        self.info = info
        self._path = f"/v1/sandboxes/{segment(info.id)}"
        self.commands = AsyncCommands(http, info.id, info.timeout_seconds)
        self.files = AsyncFiles(http, info.id)
        self.git = AsyncGit(http, info.id, info.timeout_seconds)
        self.startup = AsyncStartup(http, info.id)
        self.terminals = AsyncTerminals(http, info.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @property
    def status(self) -> str:
        """`creating`, `ready`, `active` (a command runs), `stopping`, `stopped`, `resuming`, `failed` (see
        `info.reason`), `destroying`, `destroyed`.
        """
        return self.info.status

    @property
    def template(self) -> str:
        return self.info.template

    @property
    def runtime(self) -> str | None:
        """The OCI runtime that runs it: `runsc` has a kernel of its own, `crun` and `runc` share the host's."""
        return self.info.runtime

    @property
    def metadata(self) -> dict[str, Any]:
        return self.info.metadata

    @property
    def env(self) -> dict[str, str]:
        """What its commands find in their environment. From a list each value is `[redacted]` until `refresh`."""
        return self.info.env

    @property
    def created_at(self) -> datetime:
        return self.info.created_at

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self.status} {self.info.template} on {self.runtime}>"

    async def refresh(self) -> AsyncSandbox:
        """Ask for its state again; itself."""
        self.info = answer_of(SandboxView, await self._http.call("GET", self._path))
        return self

    async def update(
        self, *, name: str | Left | None = LEFT_OUT, metadata: Mapping[str, Any] | Left | None = LEFT_OUT
    ) -> AsyncSandbox:
        """Replace name or metadata (as a whole); itself. None takes it away, what is left out stays.

        Raises:
            Invalid: Metadata is over 64 KiB, or what JSON cannot say.
        """
        given: dict[str, object] = {}
        if name is not LEFT_OUT:
            given["name"] = name
        if metadata is not LEFT_OUT:
            given["metadata"] = None if metadata is None else dict(metadata)  # pyright: ignore[reportArgumentType, reportCallIssue]
        body = body_of(request_of(ChangeSandbox, **given), nulls=True)
        self.info = answer_of(SandboxView, await self._http.call("PATCH", self._path, body=body))
        return self

    async def set_env(self, env: Mapping[str, str]) -> AsyncSandbox:
        """Replace the environment of commands from now on; itself. What runs already keeps the one it has."""
        body = body_of(request_of(SetEnv, env=dict(env)))
        self.info = answer_of(SandboxView, await self._http.call("PUT", f"{self._path}/env", body=body))
        return self

    async def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        timeout_s: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """Run code in an interpreter (`python`, `node`, `ruby`, `bash`, `sh`) and wait for its end.

        Raises:
            Invalid: There is no such language.
        """
        return await self.commands.run_code(code, language=language, timeout_s=timeout_s, cwd=cwd, env=env)

    async def shell(self) -> AsyncShell:
        """A new shell session: `cd` and `export` persist from one of its commands to the next."""
        answer = await self._http.call("POST", f"{self._path}/sessions")
        return AsyncShell(self._http, answer_of(SessionView, answer), self.info.timeout_seconds)

    async def shells(self) -> list[AsyncShell]:
        """Its shell sessions, oldest first."""
        found = answer_of(SessionList, await self._http.call("GET", f"{self._path}/sessions")).data
        return [AsyncShell(self._http, view, self.info.timeout_seconds) for view in found]

    async def terminal(
        self,
        command: str | Sequence[str] | None = None,
        *,
        cols: int = 0,
        rows: int = 0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> AsyncTerminal:
        """A new terminal, as `terminals.open`; its `attach()` shows it and types on it."""
        return await self.terminals.open(command, cols=cols, rows=rows, cwd=cwd, env=env, user=user)

    async def processes(self) -> list[ProcessView]:
        """What runs inside, by pid, with the command that each descends from."""
        return answer_of(ProcessList, await self._http.call("GET", f"{self._path}/processes")).data

    async def ports(self) -> list[PortView]:
        """The TCP ports that something inside listens on."""
        return answer_of(PortList, await self._http.call("GET", f"{self._path}/ports")).data

    async def metrics(
        self, *, since: datetime | None = None, until: datetime | None = None, step_s: int | None = None
    ) -> MetricsView:
        """What it uses now, and what it used: each 10 s for the last hour, each 2 min for the last day.

        Args:
            since, until: Bounds of the history, with their zones.
            step_s: One sample for each so many seconds.

        Raises:
            Invalid: A time is without its zone.
        """
        params = {"since": _moment("since", since), "until": _moment("until", until), "step_seconds": step_s}
        return answer_of(MetricsView, await self._http.call("GET", f"{self._path}/metrics", params=params))

    async def stop(
        self, *, force: bool = False, wait: bool | float = True, on_progress: OnProgress | None = None
    ) -> AsyncSandbox:
        """Free its compute and store the files of /workspace; itself. Processes, memory and all other files are gone.

        Its next use, or `resume`, brings it back. It is `stopped` when its files are in the object store. Where the
        wait is over before, or the store fails, it is still `stopping`: the files are on the server's machine, storing
        them goes on by itself, and `info.message` says what went wrong. Safe to call twice.

        Args:
            force: Also while a command runs, which ends with it.
            wait: For its files to be stored: True, as long as that takes; a number of seconds; or False.
            on_progress: Is told how many bytes are done, of how many (None: not known yet).

        Raises:
            Conflict: A command runs (`sandbox_busy`); the server stores nothing (`storage_disabled`).
        """
        patience_s = None if wait is True else max(0.0, float(wait))
        # Who watches looks from the first moment on; else the server answers as soon as it is stopped.
        first_s = 0 if on_progress is not None else STOP_WAIT_S if patience_s is None else min(patience_s, STOP_WAIT_S)
        began = time.monotonic()
        request = StopSandbox(force=force, wait_seconds=int(first_s))
        self.info = await self._move("stop", request, first_s + ANSWER_S)
        left_s = None if patience_s is None else patience_s - (time.monotonic() - began)
        self.info = await while_stopping(self._http, self.info, patience_s=left_s, on_progress=on_progress)
        return self

    async def wait_stopped(
        self, timeout_s: float | None = None, *, on_progress: OnProgress | None = None
    ) -> AsyncSandbox:
        """Wait until one that is `stopping` is `stopped`; itself.

        Raises:
            Unavailable: The object store fails, and how. The files are on the machine; it is tried again by itself.
            DeadlineExceeded: It is not, after so many seconds.
            Conflict: It does not stop: it is used again, or at its end (`sandbox_<status>`).
        """
        await self.refresh()
        self.info = await while_stopping(self._http, self.info, patience_s=timeout_s, on_progress=on_progress)
        if self.status == "stopping" and self.info.message:
            raise Unavailable(f"The files of {self.id} are not stored yet: {self.info.message}", code="not_stored")
        if self.status == "stopping":
            raise DeadlineExceeded(f"The files of {self.id} are not stored after {timeout_s:g} s. It goes on.")
        if self.status != "stopped":
            raise Conflict(f"Sandbox {self.id} is {self.status}.", code=f"sandbox_{self.status}")
        return self

    async def resume(self) -> AsyncSandbox:
        """Bring it back with its files, its limits and its environment; itself. A running one: nothing happens.

        From the machine that has the files it takes as long as a create; else they are fetched from the object store.

        Raises:
            Conflict: It is destroyed, or at its end (`sandbox_<status>`).
            Unavailable: The object store cannot be used now. The files are safe; try again.
        """
        self.info = await self._move("resume", None, CREATE_S)
        return self

    async def fork(self, *, name: str | None = None, metadata: Mapping[str, Any] | None = None) -> AsyncSandbox:
        """A new sandbox with a copy of its files and its configuration. This one goes on undisturbed.

        A copy costs the same at any size. Not copied: processes, previews, the history of commands.

        Args:
            name, metadata: Of the copy; this one's are not copied.
        """
        request = request_of(ForkSandbox, name=name, metadata=None if metadata is None else dict(metadata))
        answer = await self._http.call(
            "POST", f"{self._path}/fork", body=body_of(request), timeout_s=CREATE_S, once=True
        )
        return AsyncSandbox(self._http, answer_of(SandboxView, answer))

    async def forks(
        self, count: int, *, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> list[AsyncSandbox | SkerryError]:
        """Up to 100 copies at once, all of the same moment. In the place of one that was not made is its error."""
        given = None if metadata is None else dict(metadata)
        request = request_of(ForkSandbox, name=name, metadata=given, count=count)
        answer = await self._http.call(
            "POST", f"{self._path}/fork", body=body_of(request), timeout_s=CREATE_S, once=True
        )
        return [
            error_of(one.error.code, one.error.message, one.error.field)
            if isinstance(one, ForkFailed)
            else AsyncSandbox(self._http, one)
            for one in answer_of(ForkList, answer).data
        ]

    async def snapshot(self, name: str | None = None) -> AsyncSnapshot:
        """Keep its files, as they are at this instant, and its configuration; `client.create(snapshot_id=…)` begins
        with them. Running or stopped; what runs is not disturbed. Several snapshots may have the same name.
        """
        body = body_of(request_of(CreateSnapshot, name=name))
        answer = await self._http.call("POST", f"{self._path}/snapshots", body=body, timeout_s=CREATE_S, once=True)
        return AsyncSnapshot(self._http, answer_of(SnapshotView, answer))

    async def _move(self, verb: str, request: StopSandbox | None, timeout_s: float) -> SandboxView:
        body = None if request is None else body_of(request)
        answer = await self._http.call("POST", f"{self._path}/{verb}", body=body, timeout_s=timeout_s, again=True)
        return answer_of(SandboxView, answer)

    async def destroy(self) -> None:
        """End it and delete its files, for good. Safe to call twice."""
        try:
            await self._http.call("DELETE", self._path)
        except NotFound:
            return

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.destroy()


def _moment(name: str, at: datetime | None) -> str | None:
    if at is not None and at.tzinfo is None:
        raise Invalid(f"'{name}' is a time without its zone.", field=name)
    return None if at is None else at.isoformat()
