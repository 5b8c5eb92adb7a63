"""One sandbox, as its owner holds it."""

from collections.abc import Mapping, Sequence
from types import TracebackType

from skerry.model.errors import NotFound
from skerry.sdk._async.commands import AsyncCommands
from skerry.sdk._async.files import AsyncFiles
from skerry.sdk._async.http import AsyncHttp
from skerry.sdk._async.terminals import AsyncTerminal, AsyncTerminals
from skerry.wire.sandboxes import SandboxView


class AsyncSandbox:
    """`commands`, `files` and `terminals` act inside; `info` is the last answer about it.

    As a context manager it is destroyed.
    """

    def __init__(self, http: AsyncHttp, info: SandboxView) -> None:
        self._http = http
        self.info = info
        self.commands = AsyncCommands(http, info.id, info.timeout_seconds)
        self.files = AsyncFiles(http, info.id)
        self.terminals = AsyncTerminals(http, info.id)

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
        """A new terminal, as `terminals.open`; `attach()` shows it and types on it."""
        return await self.terminals.open(command, cols=cols, rows=rows, cwd=cwd, env=env, user=user)

    async def refresh(self) -> "AsyncSandbox":
        """Ask for its state again; itself."""
        self.info = SandboxView.model_validate_json(await self._http.call("GET", f"/v1/sandboxes/{self.id}"))
        return self

    async def destroy(self) -> None:
        """End it and delete its files, for good. Safe to call twice."""
        try:
            await self._http.call("DELETE", f"/v1/sandboxes/{self.id}")
        except NotFound:
            return

    async def __aenter__(self) -> "AsyncSandbox":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.destroy()
