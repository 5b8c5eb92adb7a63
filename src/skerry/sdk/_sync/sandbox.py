"""One sandbox, as its owner holds it."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any

from skerry.model.errors import Invalid, NotFound
from skerry.sdk._sync.commands import Commands
from skerry.sdk._sync.files import Files
from skerry.sdk._sync.git import Git
from skerry.sdk._sync.http import Http, segment
from skerry.sdk._sync.shells import Shell
from skerry.sdk._sync.startup import Startup
from skerry.sdk._sync.terminals import Terminal, Terminals
from skerry.sdk.requests import LEFT_OUT, Left, answer_of, body_of, request_of
from skerry.sdk.results import CommandResult
from skerry.wire.metrics import MetricsView
from skerry.wire.processes import PortList, PortView, ProcessList, ProcessView
from skerry.wire.sandboxes import ChangeSandbox, SandboxView, SetEnv
from skerry.wire.shells import SessionList, SessionView


class Sandbox:
    """`commands`, `files`, `git`, `startup` and `terminals` act inside. As a context manager it is
    destroyed at the end.

    `info` is the last answer about it, and so are the properties: `refresh` asks again.
    """

    def __init__(self, http: Http, info: SandboxView) -> None:
        self._http = http
        self.info = info
        self._path = f"/v1/sandboxes/{segment(info.id)}"
        self.commands = Commands(http, info.id, info.timeout_seconds)
        self.files = Files(http, info.id)
        self.git = Git(http, info.id, info.timeout_seconds)
        self.startup = Startup(http, info.id)
        self.terminals = Terminals(http, info.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @property
    def status(self) -> str:
        """`creating`, `ready`, `active` (a command runs), `failed` (see `info.reason`), `destroying`, `destroyed`."""
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

    def refresh(self) -> "Sandbox":
        """Ask for its state again; itself."""
        self.info = answer_of(SandboxView, self._http.call("GET", self._path))
        return self

    def update(
        self, *, name: str | Left | None = LEFT_OUT, metadata: Mapping[str, Any] | Left | None = LEFT_OUT
    ) -> "Sandbox":
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
        self.info = answer_of(SandboxView, self._http.call("PATCH", self._path, body=body))
        return self

    def set_env(self, env: Mapping[str, str]) -> "Sandbox":
        """Replace the environment of commands from now on; itself. What runs already keeps the one it has."""
        body = body_of(request_of(SetEnv, env=dict(env)))
        self.info = answer_of(SandboxView, self._http.call("PUT", f"{self._path}/env", body=body))
        return self

    def run_code(
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
        return self.commands.run_code(code, language=language, timeout_s=timeout_s, cwd=cwd, env=env)

    def shell(self) -> Shell:
        """A new shell session: `cd` and `export` persist from one of its commands to the next."""
        answer = self._http.call("POST", f"{self._path}/sessions")
        return Shell(self._http, answer_of(SessionView, answer), self.info.timeout_seconds)

    def shells(self) -> list[Shell]:
        """Its shell sessions, oldest first."""
        found = answer_of(SessionList, self._http.call("GET", f"{self._path}/sessions")).data
        return [Shell(self._http, view, self.info.timeout_seconds) for view in found]

    def terminal(
        self,
        command: str | Sequence[str] | None = None,
        *,
        cols: int = 0,
        rows: int = 0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Terminal:
        """A new terminal, as `terminals.open`; its `attach()` shows it and types on it."""
        return self.terminals.open(command, cols=cols, rows=rows, cwd=cwd, env=env, user=user)

    def processes(self) -> list[ProcessView]:
        """What runs inside, by pid, with the command that each descends from."""
        return answer_of(ProcessList, self._http.call("GET", f"{self._path}/processes")).data

    def ports(self) -> list[PortView]:
        """The TCP ports that something inside listens on."""
        return answer_of(PortList, self._http.call("GET", f"{self._path}/ports")).data

    def metrics(
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
        return answer_of(MetricsView, self._http.call("GET", f"{self._path}/metrics", params=params))

    def destroy(self) -> None:
        """End it and delete its files, for good. Safe to call twice."""
        try:
            self._http.call("DELETE", self._path)
        except NotFound:
            return

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()


def _moment(name: str, at: datetime | None) -> str | None:
    if at is not None and at.tzinfo is None:
        raise Invalid(f"'{name}' is a time without its zone.", field=name)
    return None if at is None else at.isoformat()
