"""The client: where everything that a user does with a server begins."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any

from skerry.sdk._sync.http import Http
from skerry.sdk._sync.sandbox import Sandbox
from skerry.sdk._sync.templates import Templates
from skerry.sdk.requests import body_of, request_of
from skerry.sdk.settings import resolve
from skerry.wire.base import Page
from skerry.wire.sandboxes import CapabilitiesView, CreateSandbox, MeView, SandboxView

CREATE_S = 900.0  # the template may have to be built first


class Skerry:
    """A server and a key: given, else `SKERRY_URL` and `SKERRY_API_KEY`. Use one for many calls: connections are kept.

    `timeout_s` is the longest wait for one answer, `retries` how often a call that is safe to repeat is repeated.
    """

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, timeout_s: float = 60.0, retries: int = 3
    ) -> None:
        self.url, key = resolve(url, api_key)
        self._http = Http(self.url, key, timeout_s=timeout_s, retries=retries)
        self.templates = Templates(self._http)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def create(
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
    ) -> Sandbox:
        """A new sandbox, ready for commands. What is left out takes the server's default; `info` has what is in force.

        Args:
            cpu_millis: Thousandths of a core.
            timeout_s: Default deadline of its commands.
            network: `bridge` (outbound) or `none`.

        Raises:
            NotFound: Unknown template (the message lists the known ones).
            Invalid, LimitExceeded, Refused, TooBusy: As the message says; nothing is left behind.
        """
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
        )
        answer = self._http.call("POST", "/v1/sandboxes", body=body_of(request), timeout_s=CREATE_S, once=True)
        return Sandbox(self._http, SandboxView.model_validate_json(answer))

    def get(self, sandbox_id: str) -> Sandbox:
        """A sandbox of the account by its id. Raises NotFound."""
        answer = self._http.call("GET", f"/v1/sandboxes/{sandbox_id}")
        return Sandbox(self._http, SandboxView.model_validate_json(answer))

    def list(self) -> list[Sandbox]:
        """The account's sandboxes, newest first, destroyed ones left out."""
        found: list[Sandbox] = []
        before: str | None = None
        while True:
            answer = self._http.call("GET", "/v1/sandboxes", params={"before": before})
            page = Page[SandboxView].model_validate_json(answer)
            found += [Sandbox(self._http, view) for view in page.data]
            before = page.next
            if before is None:
                return found

    def capabilities(self) -> CapabilitiesView:
        """What the machine behind the server can and cannot do."""
        return CapabilitiesView.model_validate_json(self._http.call("GET", "/v1/capabilities"))

    def me(self) -> MeView:
        """The account of the key."""
        return MeView.model_validate_json(self._http.call("GET", "/v1/me"))

    def close(self) -> None:
        """Close the connections. Sandboxes go on."""
        self._http.close()

    def __enter__(self) -> "Skerry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
