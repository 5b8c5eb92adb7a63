"""One sandbox, as its owner holds it."""

from collections.abc import Mapping, Sequence
from types import TracebackType

from skerry.model.errors import NotFound
from skerry.sdk._sync.commands import Commands
from skerry.sdk._sync.files import Files
from skerry.sdk._sync.http import Http
from skerry.sdk._sync.terminals import Terminal, Terminals
from skerry.wire.sandboxes import SandboxView


class Sandbox:
    """`commands`, `files` and `terminals` act inside; `info` is the last answer about it.

    As a context manager it is destroyed.
    """

    def __init__(self, http: Http, info: SandboxView) -> None:
        self._http = http
        self.info = info
        self.commands = Commands(http, info.id, info.timeout_seconds)
        self.files = Files(http, info.id)
        self.terminals = Terminals(http, info.id)

    @property
    def id(self) -> str:
        return self.info.id

    @property
    def name(self) -> str | None:
        return self.info.name

    @property
    def status(self) -> str:
        """As of the last answer; `refresh` asks again."""
        return self.info.status

    @property
    def runtime(self) -> str | None:
        """The OCI runtime that runs it: `runsc` has a kernel of its own, `crun` and `runc` share the host's."""
        return self.info.runtime

    def __repr__(self) -> str:
        name = f" {self.name!r}" if self.name else ""
        return f"<{type(self).__name__} {self.id}{name} {self.status} {self.info.template} on {self.runtime}>"

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
        """A new terminal, as `terminals.open`; `attach()` shows it and types on it."""
        return self.terminals.open(command, cols=cols, rows=rows, cwd=cwd, env=env, user=user)

    def refresh(self) -> "Sandbox":
        """Ask for its state again; itself."""
        self.info = SandboxView.model_validate_json(self._http.call("GET", f"/v1/sandboxes/{self.id}"))
        return self

    def destroy(self) -> None:
        """End it and delete its files, for good. Safe to call twice."""
        try:
            self._http.call("DELETE", f"/v1/sandboxes/{self.id}")
        except NotFound:
            return

    def __enter__(self) -> "Sandbox":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.destroy()
