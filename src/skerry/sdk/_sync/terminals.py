"""Terminals in one sandbox: programs on a PTY, which run on whoever looks at them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from skerry.model.errors import NotFound
from skerry.sdk._sync.http import Http, segment
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.wire.base import Page
from skerry.wire.terminals import OpenTerminal, Resize, TerminalView

if TYPE_CHECKING:
    from skerry.sdk._sync.attachments import Attachment


class Terminal:
    """A terminal that was opened; `info` is the last answer about it. It goes on when this object goes away."""

    def __init__(self, http: Http, info: TerminalView) -> None:
        self._http = http
        self.info = info

    @property
    def id(self) -> str:
        """A command's id, too: `commands.get` finds it."""
        return self.info.id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self.info.status.value} {self.info.command[:60]!r}>"

    def attach(self, offset: int = 0) -> "Attachment":
        """A live connection, as a context manager: what it shows from `offset` on, and what is typed. Any number may
        be open at once; all see everything and all may type.

        Raises (when entered):
            NotFound: It is not there any more.
            Unreachable: No answer.
        """
        from skerry.sdk._sync.attachments import Attachment

        return Attachment(self._http, f"{self._path}/ws", offset, channels=False)

    def resize(self, cols: int, rows: int) -> None:
        """Give it another size, for all that look at it."""
        body = Resize(cols=cols, rows=rows).model_dump_json().encode()
        self.info = answer_of(TerminalView, self._http.call("POST", f"{self._path}/resize", body=body))

    def refresh(self) -> "Terminal":
        """Ask for its state again; itself."""
        self.info = answer_of(TerminalView, self._http.call("GET", self._path))
        return self

    def close(self) -> None:
        """End it and all that runs in it. Safe to call twice."""
        try:
            self._http.call("DELETE", self._path)
        except NotFound:
            return

    @property
    def _path(self) -> str:
        return f"/v1/sandboxes/{segment(self.info.sandbox_id)}/terminals/{segment(self.id)}"


class Terminals:
    """`sandbox.terminals`."""

    def __init__(self, http: Http, sandbox_id: str) -> None:
        self._http = http
        self._path = f"/v1/sandboxes/{segment(sandbox_id)}/terminals"

    def open(
        self,
        command: str | Sequence[str] | None = None,
        *,
        cols: int = 0,
        rows: int = 0,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        name: str | None = None,
    ) -> Terminal:
        """Start a program on a terminal: a shell line (text), a program with its arguments (a sequence), or left out an
        interactive shell. It has no deadline. 0 columns or rows: 80 and 24.

        Raises:
            TooBusy, LimitExceeded, SandboxGone: As the message says; nothing has been started.
        """
        request = request_of(
            OpenTerminal,
            command=command if isinstance(command, str) else None,
            argv=None if command is None or isinstance(command, str) else list(command),
            cols=cols,
            rows=rows,
            working_directory=cwd,
            env=dict(env) if env is not None else None,
            user=user,
            name=name,
        )
        answer = self._http.call("POST", self._path, body=body_of(request))
        return Terminal(self._http, answer_of(TerminalView, answer))

    def list(self, *, ended: bool = False) -> list[Terminal]:
        """Those that run, newest first; with `ended` those that have ended, too (the latest page of them)."""
        answer = self._http.call("GET", self._path, params={"ended": ended or None})
        return [Terminal(self._http, view) for view in answer_of(Page[TerminalView], answer).data]

    def get(self, terminal_id: str) -> Terminal:
        """One by its id. Raises NotFound."""
        answer = self._http.call("GET", f"{self._path}/{segment(terminal_id)}")
        return Terminal(self._http, answer_of(TerminalView, answer))
