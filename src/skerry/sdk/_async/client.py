"""The client: where everything that a user does with a server begins."""

import builtins
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from skerry.model.errors import Conflict, Invalid, NotFound
from skerry.model.ids import is_id
from skerry.sdk._async.commands import AsyncRunningCommand
from skerry.sdk._async.http import AsyncHttp, segment
from skerry.sdk._async.keys import AsyncKeys
from skerry.sdk._async.listing import AsyncListing
from skerry.sdk._async.sandbox import CREATE_S, AsyncSandbox
from skerry.sdk._async.snapshots import AsyncSnapshots
from skerry.sdk._async.templates import AsyncTemplates
from skerry.sdk.naming import MOST_LISTED, beginning, several
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.sdk.settings import resolve
from skerry.wire.base import Page
from skerry.wire.commands import CommandView
from skerry.wire.leaks import LeaksView
from skerry.wire.sandboxes import CapabilitiesView, CreateSandbox, MeView, SandboxView, UsageView

LEAKS_S = 300.0  # it looks at the files of every account in the object store


class AsyncSkerry:
    """A server and a key: given, else `SKERRY_URL` and `SKERRY_API_KEY`. Use one for many calls: connections are kept.

    `timeout_s` is the longest wait for one answer, `retries` how often a call that is safe to repeat is repeated.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, timeout_s: float = 60.0, retries: int = 3
    ) -> None:
        self.url, key = resolve(url, api_key)
        self._http = AsyncHttp(self.url, key, timeout_s=timeout_s, retries=retries)
        self.templates = AsyncTemplates(self._http)
        self.keys = AsyncKeys(self._http)
        self.snapshots = AsyncSnapshots(self._http)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    async def create(
        self,
        template: str | None = None,
        *,
        name: str | None = None,
        memory_mb: int | None = None,
        cpu_millis: int | None = None,
        disk_mb: int | None = None,
        timeout_s: int | None = None,
        network: str | None = None,
        env: Mapping[str, str] | None = None,
        metadata: Mapping[str, Any] | None = None,
        startup_command: str | None = None,
        idle_timeout_s: int | None = None,
        snapshot_id: str | None = None,
        restore_from: str | None = None,
    ) -> AsyncSandbox:
        """A new sandbox, ready for commands. What is left out takes the server's default; `info` has what is in force.

        Args:
            cpu_millis: Thousandths of a core.
            timeout_s: Default deadline of its commands.
            network: `bridge` (outbound) or `none`.
            env: For all its commands; kept encrypted.
            metadata: Your own JSON, 64 KiB at most; `list` filters by it.
            startup_command: A shell line that runs when it has come up; `sandbox.startup` tells how it goes.
            idle_timeout_s: Without use for as long it is stopped, and comes back with its next use; 0: never.
            snapshot_id: Begin with a snapshot's files, template and configuration; what else is given here goes before
                its configuration. Its template is not to be changed.
            restore_from: Begin with the files of another sandbox of yours, by its id, as they are now.

        Raises:
            Invalid: Unknown template (the message lists the known ones), no such snapshot, no such sandbox to restore
                from, or another wish that cannot be met.
            Conflict: The sandbox to restore from is destroyed, or could not be made (`sandbox_<status>`).
            LimitExceeded, Refused, TooBusy: As the message says; nothing is left behind.
        """
        if template is not None and snapshot_id is not None:
            raise Invalid(
                "A snapshot brings its template along: leave out 'template', or 'snapshot_id'.", field="template"
            )
        request = request_of(
            CreateSandbox,
            template=template,
            name=name,
            memory_mb=memory_mb,
            cpu_millis=cpu_millis,
            disk_mb=disk_mb,
            timeout_seconds=timeout_s,
            network_mode=network,
            env=dict(env) if env is not None else None,
            metadata=dict(metadata) if metadata is not None else None,
            startup_command=startup_command,
            idle_timeout_seconds=idle_timeout_s,
            snapshot_id=snapshot_id,
            restore_from=restore_from,
        )
        answer = await self._http.call("POST", "/v1/sandboxes", body=body_of(request), timeout_s=CREATE_S, once=True)
        return AsyncSandbox(self._http, answer_of(SandboxView, answer))

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """A sandbox of the account by its id. Raises NotFound."""
        answer = await self._http.call("GET", f"/v1/sandboxes/{segment(sandbox_id)}")
        return AsyncSandbox(self._http, answer_of(SandboxView, answer))

    async def command(self, command_id: str) -> AsyncRunningCommand:
        """A command of any sandbox by its id, running or ended. Raises NotFound."""
        answer = await self._http.call("GET", f"/v1/commands/{segment(command_id)}")
        return AsyncRunningCommand(self._http, answer_of(CommandView, answer))

    async def capabilities(self) -> CapabilitiesView:
        """What the machine behind the server can and cannot do."""
        return answer_of(CapabilitiesView, await self._http.call("GET", "/v1/capabilities"))

    async def me(self) -> MeView:
        """The account of the key."""
        return answer_of(MeView, await self._http.call("GET", "/v1/me"))

    async def usage(self) -> UsageView:
        """How many sandboxes and commands the account has, what they may use, and what it is allowed."""
        return answer_of(UsageView, await self._http.call("GET", "/v1/usage"))

    async def leaks(self) -> LeaksView:
        """What the server holds that is on no record, of all accounts: for a key of the first one."""
        return answer_of(LeaksView, await self._http.call("GET", "/v1/leaks", timeout_s=LEAKS_S))

    def list(
        self,
        *,
        name: str | None = None,
        id_prefix: str | None = None,
        metadata: Mapping[str, str | None] | None = None,
        status: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> AsyncListing[AsyncSandbox]:
        """The account's sandboxes, newest first: go through them, or have a list by `all()`.

        Args:
            name: Exactly this name.
            id_prefix: Ids that begin like this.
            metadata: Members at the top with this text as value; None: with any. All must hold.
            status: Only of this status, or these; without it destroyed ones are left out.
            limit: How many at most.
        """
        where = {
            "name": name,
            "id_prefix": id_prefix,
            "metadata": [key if value is None else f"{key}={value}" for key, value in (metadata or {}).items()],
            "status": [status] if isinstance(status, str) else status,
        }
        return AsyncListing(self._http, "/v1/sandboxes", self._read, where, limit)

    async def find(self, word: str) -> AsyncSandbox:
        """The sandbox that a person means: by its id, its name, or the beginning of its id (4 characters or more).

        Raises:
            NotFound: There is none.
            Conflict: There are several; the message lists them.
        """
        if is_id(word, "sbx"):
            return await self.get(word)
        found = await self.list(name=word, limit=MOST_LISTED + 1).all() if len(word) <= 200 else []
        prefix = beginning(word, "sbx")
        if not found and prefix is not None:
            found = await self.list(id_prefix=prefix, limit=MOST_LISTED + 1).all()
        if not found:
            raise NotFound(f"No sandbox has the name or id {word[:200]!r}. `skerry ls` lists yours.", field="sandbox")
        if len(found) > 1:
            raise Conflict(several(word, "sandboxes", [(box.id, box.name) for box in found]), field="sandbox")
        return await self.get(found[0].id)

    def _read(self, answer: bytes) -> tuple[builtins.list[AsyncSandbox], str | None]:
        page = answer_of(Page[SandboxView], answer)
        return [AsyncSandbox(self._http, view) for view in page.data], page.next

    async def aclose(self) -> None:
        """Close the connections. Sandboxes go on."""
        await self._http.aclose()

    async def __aenter__(self) -> "AsyncSkerry":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
