"""The command that one sandbox is started up with."""

from skerry.sdk._async.http import AsyncHttp
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.wire.startup import SetStartup, StartupView


class AsyncStartup:
    """`sandbox.startup`."""

    def __init__(self, http: AsyncHttp, sandbox_id: str) -> None:
        self._http = http
        self._path = f"/v1/sandboxes/{sandbox_id}/startup"

    async def get(self) -> StartupView:
        """What it is, and how its latest run goes, with the end of its output."""
        return answer_of(StartupView, await self._http.call("GET", self._path))

    async def set(self, command: str | None) -> StartupView:
        """Set it, or take it away (None). It runs when the sandbox comes up the next time. Safe to call twice."""
        body = body_of(request_of(SetStartup, command=command), nulls=True)
        return answer_of(StartupView, await self._http.call("PUT", self._path, body=body))

    async def run(self) -> StartupView:
        """Run it now; an earlier run is killed first."""
        return answer_of(StartupView, await self._http.call("POST", f"{self._path}/run"))
