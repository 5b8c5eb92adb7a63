"""Commands in one sandbox: run and wait, or start and follow. A broken connection is taken up again by offset."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Literal

from skerry.model.command import Keep
from skerry.model.errors import ProtocolError, SkerryError, Unavailable
from skerry.sdk._async.clock import sleep
from skerry.sdk._async.http import AsyncHttp, segment
from skerry.sdk.backoff import delay_s
from skerry.sdk.following import Follower
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.sdk.results import CommandResult, Lost, Output, result_from
from skerry.wire.base import Page
from skerry.wire.commands import CommandView, RunCode, RunCommand, SignalCommand

if TYPE_CHECKING:
    from skerry.sdk._async.attachments import AsyncAttachment

RECONNECT_S = 60.0
MARGIN_S = 30.0
PAGE = 200

Sink = Callable[[bytes], object]


class AsyncRunningCommand:
    """A command that was started. It goes on when this object or the client goes away; `commands.get(id)` finds it."""

    def __init__(self, http: AsyncHttp, view: CommandView) -> None:
        self._http = http
        self._view = view

    @property
    def id(self) -> str:
        return self._view.id

    @property
    def info(self) -> CommandView:
        """The last answer about it. Of one that comes from a list: without its output."""
        return self._view

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._view.status.value} {self._view.command[:60]!r}>"

    def __aiter__(self) -> AsyncIterator[Output | Lost]:
        """As `events()`: `Output` as it comes, from the beginning."""
        return self.events()

    async def events(self, offset: int = 0) -> AsyncGenerator[Output | Lost]:
        """The output from `offset` on, as it comes, to the command's end. Broken connections are taken up again.

        Raises:
            Unreachable: No connection for a minute; the command goes on, and so does a later call with an offset.
        """
        follower = Follower(offset)
        async with aclosing(self._follow(follower)) as events:
            async for event in events:
                yield event

    async def wait(self, *, on_stdout: Sink | None = None, on_stderr: Sink | None = None) -> CommandResult:
        """The result, once the command has ended. Safe to call again; the callbacks get the bytes as they come."""
        follower = Follower(0)
        sinks = {"stdout": on_stdout, "stderr": on_stderr}
        async with aclosing(self._follow(follower)) as events:
            async for event in events:
                if isinstance(event, Output):
                    follower.collect(event)
                    sink = sinks[event.stream]
                    if sink is not None:
                        sink(event.data)
        self._view = follower.ended()
        stdout, stderr = follower.collected("stdout"), follower.collected("stderr")
        return result_from(self._view, stdout, stderr)

    def attach(self, offset: int = 0) -> "AsyncAttachment":
        """A live connection, as a context manager: output from `offset` on, and input where it was started with
        `stdin_stream`.

        Raises (when entered):
            Unreachable: No answer.
        """
        from skerry.sdk._async.attachments import AsyncAttachment

        return AsyncAttachment(self._http, f"/v1/commands/{self.id}/ws", offset, channels=True)

    async def poll(self) -> CommandResult:
        """The state now, with the output so far (1 MiB of each stream)."""
        self._view = answer_of(CommandView, await self._http.call("GET", f"/v1/commands/{self.id}"))
        return result_from(self._view)

    async def signal(self, signal: int, *, scope: str = "tree") -> None:
        """Send a signal to every descendant (`tree`), the process `group` or `main`. After the end nothing happens."""
        body = body_of(request_of(SignalCommand, signal=signal, scope=scope))
        await self._http.call("POST", f"/v1/commands/{self.id}/signal", body=body)

    async def kill(self) -> None:
        """SIGKILL to every descendant. Safe to call twice."""
        await self.signal(9)

    async def _follow(self, follower: Follower) -> AsyncGenerator[Output | Lost]:
        attempt, lost_at = 0, 0.0
        while follower.view is None:
            before = follower.offset
            try:
                async with self._http.stream(
                    f"/v1/commands/{self.id}/events", params={"offset": before}, headers={"Accept": "text/event-stream"}
                ) as chunks:
                    async for chunk in chunks:
                        for event in follower.take(chunk):
                            yield event
                failure: SkerryError = ProtocolError("The server ended the stream before the command's end.")
            except Unavailable as error:
                failure = error
            if follower.view is not None:
                return
            now = time.monotonic()
            if follower.offset > before or lost_at == 0.0:
                attempt, lost_at = 0, now
            if now - lost_at > RECONNECT_S:
                raise failure
            follower.reconnect()
            await sleep(delay_s(attempt))
            attempt += 1


class AsyncCommands:
    """`sandbox.commands`."""

    def __init__(self, http: AsyncHttp, sandbox_id: str, default_timeout_s: int) -> None:
        self._http = http
        self._sandbox_id = sandbox_id
        self._default_timeout_s = default_timeout_s

    async def run(
        self,
        command: str | Sequence[str],
        *,
        on_stdout: Sink | None = None,
        on_stderr: Sink | None = None,
        timeout_s: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | None = None,
    ) -> CommandResult:
        """Run a shell line (text) or a program with its arguments (a sequence) and wait for its end.

        A non-zero exit, a deadline or a signal is a result and no error (`result.check()` makes it one). Without
        `stdin` the command reads end of file at once. With a callback, output is passed on as it comes.

        Raises:
            Unreachable: No answer, several times over. The command may still run. A connection that breaks once is
                nothing: the call is made again and finds the command that it has started.
        """
        request = self._request(command, timeout_s=timeout_s, cwd=cwd, env=env, user=user, stdin=stdin)
        if on_stdout is not None or on_stderr is not None:
            running = await self._start(request)
            return await running.wait(on_stdout=on_stdout, on_stderr=on_stderr)
        patience = (timeout_s or self._default_timeout_s) + MARGIN_S
        answer = await self._http.call("POST", self._path, body=body_of(request), timeout_s=patience, once=True)
        return result_from(answer_of(CommandView, answer))

    async def start(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        stdin: str | None = None,
        stdin_stream: bool = False,
        keep: Literal["head", "tail", "unread"] = "head",
    ) -> AsyncRunningCommand:
        """As `run`, but return as soon as the command runs.

        Args:
            stdin_stream: Leave its standard input open: `attach()` writes to it.
            keep: Of an output larger than the server keeps: its beginning, its end, or `unread`: all, the command
                waits for whoever follows it.
        """
        request = self._request(command, timeout_s=timeout_s, cwd=cwd, env=env, user=user, stdin=stdin)
        more = {"stdin_stream": stdin_stream, "keep": Keep(keep)}
        return await self._start(request.model_copy(update=more))

    async def run_code(
        self,
        code: str,
        *,
        language: str = "python",
        timeout_s: int | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> CommandResult:
        """As `sandbox.run_code`."""
        request = request_of(
            RunCode,
            code=code,
            language=language,
            timeout_seconds=timeout_s,
            working_directory=cwd,
            env=dict(env) if env is not None else None,
        )
        patience = (timeout_s or self._default_timeout_s) + MARGIN_S
        path = f"/v1/sandboxes/{segment(self._sandbox_id)}/code"
        return result_from(
            answer_of(CommandView, await self._http.call("POST", path, body=body_of(request), timeout_s=patience))
        )

    async def get(self, command_id: str) -> AsyncRunningCommand:
        """A command by its id, running or ended, of this or any other sandbox of the account.

        Raises:
            NotFound: No such command.
        """
        answer = await self._http.call("GET", f"/v1/commands/{segment(command_id)}")
        return AsyncRunningCommand(self._http, answer_of(CommandView, answer))

    async def list(
        self,
        *,
        status: str | Sequence[str] | None = None,
        kind: str | Sequence[str] | None = None,
        limit: int | None = None,
    ) -> list[AsyncRunningCommand]:
        """What was run in the sandbox, newest first, after its end too; `info` of each tells how it stands.

        Args:
            status: Only these: `running`, `completed`, `failed`, `timeout`.
            kind: Only these: `command`, `startup`, `terminal`. None: all.
            limit: The latest so many. None: all, two hundred to a call.
        """
        found: list[AsyncRunningCommand] = []
        where = {
            "status": [status] if isinstance(status, str) else status,
            "kind": [kind] if isinstance(kind, str) else kind,
        }
        before: str | None = None
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(limit - len(found), PAGE)
            params = {**where, "limit": size, "before": before}
            page = answer_of(Page[CommandView], await self._http.call("GET", self._path, params=params))
            found += [AsyncRunningCommand(self._http, view) for view in page.data]
            before = page.next
            if before is None:
                break
        return found

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{segment(self._sandbox_id)}/commands"

    async def _start(self, request: RunCommand) -> AsyncRunningCommand:
        body = body_of(request.model_copy(update={"run_async": True}))
        answer = await self._http.call("POST", self._path, body=body, once=True)
        return AsyncRunningCommand(self._http, answer_of(CommandView, answer))

    def _request(
        self,
        command: str | Sequence[str],
        *,
        timeout_s: int | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        stdin: str | None,
    ) -> RunCommand:
        return request_of(
            RunCommand,
            command=command if isinstance(command, str) else None,
            argv=None if isinstance(command, str) else list(command),
            timeout_seconds=timeout_s,
            working_directory=cwd,
            env=dict(env) if env is not None else None,
            user=user,
            stdin=stdin,
        )
