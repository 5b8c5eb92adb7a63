"""Shell sessions: directory and exported variables persist from one command to the next."""

from types import TracebackType

from skerry.model.errors import NotFound
from skerry.sdk._sync.http import Http, segment
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.sdk.results import ShellResult, shell_result_from
from skerry.wire.shells import SessionExec, SessionResult, SessionView

MARGIN_S = 30.0


class Shell:
    """One session. It lives until `end`, or as long as its sandbox; as a context manager it is ended."""

    def __init__(self, http: Http, view: SessionView, default_timeout_s: int) -> None:
        self._http = http
        self._view = view
        self._default_timeout_s = default_timeout_s

    @property
    def id(self) -> str:
        return self._view.id

    @property
    def cwd(self) -> str:
        """The working directory as of the last answer."""
        return self._view.cwd

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} in {self.cwd!r}>"

    def run(self, command: str, *, timeout_s: int | None = None) -> ShellResult:
        """Run a command in the session and wait for its end. Not repeated where the connection breaks.

        Raises:
            Conflict: The session runs another command (`session_busy`).
            Unreachable: The command may have run, or run still.
        """
        request = request_of(SessionExec, command=command, timeout_seconds=timeout_s)
        patience = (timeout_s or self._default_timeout_s) + MARGIN_S
        answer = self._http.call("POST", f"{self._path}/exec", body=body_of(request), timeout_s=patience)
        result = shell_result_from(answer_of(SessionResult, answer))
        self._view = self._view.model_copy(update={"cwd": result.cwd})
        return result

    def refresh(self) -> "Shell":
        """Ask for its state again; itself."""
        self._view = answer_of(SessionView, self._http.call("GET", self._path))
        return self

    def end(self) -> None:
        """End it; a command that it runs is killed. Safe to call twice."""
        try:
            self._http.call("DELETE", self._path)
        except NotFound:
            return

    def __enter__(self) -> "Shell":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @property
    def _path(self) -> str:
        return f"/v1/sessions/{segment(self.id)}"
