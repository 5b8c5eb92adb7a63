"""git in one sandbox, with a token for one operation: it is in no command line, no configuration and no record."""

from skerry.sdk._async.http import AsyncHttp
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.sdk.results import CommandResult, result_from
from skerry.wire.base import Request
from skerry.wire.commands import CommandView
from skerry.wire.git import WORKSPACE, GitAuth, GitClone, GitPull, GitPush

USERNAME = "x-access-token"
MARGIN_S = 30.0


class AsyncGit:
    """`sandbox.git`. What git says and how it ended is the result; `result.check()` makes a failure an error."""

    def __init__(self, http: AsyncHttp, sandbox_id: str, default_timeout_s: int) -> None:
        self._http = http
        self._base = f"/v1/sandboxes/{sandbox_id}/git"
        self._default_timeout_s = default_timeout_s

    async def clone(
        self,
        url: str,
        path: str | None = None,
        *,
        branch: str | None = None,
        depth: int | None = None,
        token: str | None = None,
        username: str = USERNAME,
        timeout_s: int | None = None,
    ) -> CommandResult:
        """Clone a repository; None as `path`: into a directory named after it."""
        request = request_of(
            GitClone,
            url=url,
            path=path,
            branch=branch,
            depth=depth,
            auth=_auth(token, username),
            timeout_seconds=timeout_s,
        )
        return await self._run("clone", request, timeout_s)

    async def pull(
        self,
        path: str = WORKSPACE,
        *,
        remote: str | None = None,
        branch: str | None = None,
        token: str | None = None,
        username: str = USERNAME,
        timeout_s: int | None = None,
    ) -> CommandResult:
        """Pull into the repository at `path`."""
        request = request_of(
            GitPull,
            path=path,
            remote=remote,
            branch=branch,
            auth=_auth(token, username),
            timeout_seconds=timeout_s,
        )
        return await self._run("pull", request, timeout_s)

    async def push(
        self,
        path: str = WORKSPACE,
        *,
        remote: str | None = None,
        branch: str | None = None,
        set_upstream: bool = False,
        token: str | None = None,
        username: str = USERNAME,
        timeout_s: int | None = None,
    ) -> CommandResult:
        """Push from the repository at `path`."""
        request = request_of(
            GitPush,
            path=path,
            remote=remote,
            branch=branch,
            set_upstream=set_upstream,
            auth=_auth(token, username),
            timeout_seconds=timeout_s,
        )
        return await self._run("push", request, timeout_s)

    async def _run(self, verb: str, request: Request, timeout_s: int | None) -> CommandResult:
        patience = (timeout_s or self._default_timeout_s) + MARGIN_S
        answer = await self._http.call("POST", f"{self._base}/{verb}", body=body_of(request), timeout_s=patience)
        return result_from(answer_of(CommandView, answer))


def _auth(token: str | None, username: str) -> GitAuth | None:
    return None if token is None else request_of(GitAuth, token=token, username=username)
