"""git's network operations, with a token for one of them that leaves no trace in the sandbox or the records.

The token goes to a fixed script on its standard input and from there to git through a pipe: never an argument, a
variable of another process, a file, git's configuration or an output. Root inside could still take it from the
processes that use it, so a token is as safe as what runs in the sandbox at that moment.
"""

import base64
import re
import shlex
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

from skerry.control import commands, files
from skerry.control.commands import NewCommand, Result
from skerry.control.deps import Deps
from skerry.control.git_script import LAUNCH, OWN, SCRIPT
from skerry.model.errors import Invalid
from skerry.model.ids import AccountId

TIMEOUT_S = 300
_PROTOCOLS = ("https", "http", "ssh", "git", "file")
_SCP = re.compile(r"(?:[A-Za-z0-9._-]+@)?[A-Za-z0-9._\[\]:-]*?[A-Za-z0-9._\]-]:(?!/)[^\s]+")
_REF = re.compile(r"(?![-/.])(?!.*(?:\.\.|@\{|//|\.lock$|[/.]$))[^\x00-\x20\x7f~^:?*\[\\]{1,255}")
_HIDDEN = ("--", "--no-recurse-submodules", "--recurse-submodules=no")  # of no interest to a reader
_REMOTE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,99}")


@dataclass(frozen=True, slots=True)
class Auth:
    """For one operation, over http and https only."""

    username: str
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Clone:
    """`path` None: a directory of /workspace named after the repository. `depth`: so many commits."""

    url: str
    path: str | None = None
    branch: str | None = None
    depth: int | None = None


@dataclass(frozen=True, slots=True)
class Pull:
    """None: what the branch that is checked out follows."""

    path: str
    remote: str | None = None
    branch: str | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """None: what the repository's configuration says."""

    path: str
    remote: str | None = None
    branch: str | None = None
    set_upstream: bool = False


Operation = Clone | Pull | Push


async def run(
    deps: Deps, account_id: AccountId, sandbox_id: str, wanted: Operation, auth: Auth | None, timeout_s: int | None
) -> Result:
    """Run one operation and wait for its end. Hooks do not run, and submodules are left alone.

    Raises:
        Invalid: An address, a name or a token that git must not be given.
        NotFound, Conflict, Unavailable: As `commands.start`.
    """
    new = command_of(wanted, auth, timeout_s or TIMEOUT_S)
    return await commands.run(deps, account_id, sandbox_id, new)


def command_of(wanted: Operation, auth: Auth | None, timeout_s: int = TIMEOUT_S) -> NewCommand:
    """What is run for an operation, and what is shown of it."""
    match wanted:
        case Clone():
            cwd, words, scope = None, _clone(wanted), _scope_of(wanted.url, auth)
        case Pull():
            cwd, words, scope = files.absolute(wanted.path), _pull(wanted), f"fetch {wanted.remote or ''}"
        case Push():
            cwd, words, scope = files.absolute(wanted.path), _push(wanted), f"push {wanted.remote or ''}"
    return NewCommand(
        argv=("/bin/sh", "-c", LAUNCH, "git", SCRIPT, "git", "auth" if auth else "open", scope, *words),
        timeout_s=timeout_s,
        cwd=cwd,
        env={
            **OWN,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": ":".join(_PROTOCOLS if auth is None else _PROTOCOLS[:2]),
        },
        stdin=None if auth is None else _secrets(auth),
        shown=shlex.join(("git", *(word for word in words if word not in _HIDDEN))),
    )


def _clone(wanted: Clone) -> list[str]:
    words = ["clone", "--no-recurse-submodules"]
    if wanted.branch is not None:
        words += ["--branch", _ref(wanted.branch)]
    if wanted.depth is not None:
        words += ["--depth", str(wanted.depth)]
    words += ["--", wanted.url]
    return words if wanted.path is None else [*words, files.absolute(wanted.path)]


def _pull(wanted: Pull) -> list[str]:
    words = ["pull", "--no-recurse-submodules"]
    if wanted.remote is not None or wanted.branch is not None:
        words += ["--", _remote(wanted.remote or "origin")]
    return words if wanted.branch is None else [*words, _ref(wanted.branch)]


def _push(wanted: Push) -> list[str]:
    words = ["push", "--recurse-submodules=no"]
    if wanted.set_upstream:
        words.append("--set-upstream")
    branch = wanted.branch if wanted.branch is not None or not wanted.set_upstream else "HEAD"
    if wanted.remote is not None or branch is not None:
        words += ["--", _remote(wanted.remote or "origin")]
    return words if branch is None else [*words, _ref(branch)]


def _scope_of(url: str, auth: Auth | None) -> str:
    """What a repository's address says about where a token may go: scheme and host. Checks the address.

    Raises:
        Invalid: No address that git may be given, or one with a secret in it.
    """
    _text("url", url, 4096)
    parts = _split(url)
    scheme = "file" if url.startswith("/") else "ssh" if _SCP.fullmatch(url) else parts.scheme
    if url.startswith("-") or scheme not in _PROTOCOLS or "::" in url.split("/", 1)[0]:
        raise Invalid(
            f"'url' is no address that can be used here: give {', '.join(_PROTOCOLS)} or user@host:path.",
            field="url",
        )
    if scheme in ("http", "https") and "@" in parts.netloc:
        raise Invalid(
            "'url' has credentials in it, which git would keep in the repository. Leave them out, and give "
            "'auth': {'username', 'token'} for this one operation.",
            code="credentials_in_url",
            field="url",
        )
    if auth is not None and scheme not in ("http", "https"):
        raise Invalid(f"'auth' is for http and https addresses; this one is {scheme}.", field="auth")
    if scheme in ("http", "https") and not parts.hostname:
        raise Invalid("'url' names no host.", field="url")
    return f"url {parts.scheme}://{parts.netloc}"


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise Invalid(f"'url' is no address: {error}.", field="url") from error


def _secrets(auth: Auth) -> bytes:
    """Three lines: name, token, and both as a header carries them, which has to be struck out of outputs, too."""
    _text("auth.username", auth.username, 256)
    _text("auth.token", auth.token, 4096)
    header = base64.b64encode(f"{auth.username}:{auth.token}".encode()).decode()
    return f"{auth.username}\n{auth.token}\n{header}\n".encode()


def _text(field: str, value: str, most: int) -> str:
    if not value or len(value) > most or any(ord(c) < 32 or ord(c) == 127 or 0xD800 <= ord(c) < 0xE000 for c in value):
        raise Invalid(f"'{field}' has 1 to {most} characters, none of them a control character.", field=field)
    return value


def _ref(name: str) -> str:
    if not _REF.fullmatch(name):
        raise Invalid(f"'{name[:100]}' is no name of a branch or tag.", field="branch")
    return name


def _remote(name: str) -> str:
    if not _REMOTE.fullmatch(name):
        raise Invalid(
            f"'{name[:100]}' is no name of a remote. An address is set with 'git remote add'.", field="remote"
        )
    return name
