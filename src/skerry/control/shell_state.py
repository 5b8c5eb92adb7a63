"""What a shell session's command is wrapped in, and what is read from what it leaves. Pure.

Each command runs in a shell of its own, which starts in the session's directory with its variables and, at its end,
writes directory and variables to a file that the command's token names. Without a whole file that carries the token
nothing is changed: a command that is killed, replaces its shell or spoils the way out leaves the session as it was.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from skerry.model.shell import ShellState

DUMP_LIMIT = 262_144  # bytes of a file that is looked at
_STATE_LIMIT = 65_536  # bytes of a state as JSON: it has to fit into a request with the command's own text
_NAMES_LIMIT = 1024
_TOKEN_NAME = "SKERRY_SESSION_TOKEN"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
# The shell's own, and what would change how the next shell starts. Exported functions go by their names, too.
_NEVER = frozenset({"_", "PWD", "SHLVL", "UID", "EUID", "PPID", "SHELLOPTS", "BASHOPTS", "GROUPS", _TOKEN_NAME})

# Privileged mode takes neither functions nor options nor a file to read first (BASH_ENV) from the environment.
LAUNCH = """\
if [ -x /bin/bash ]; then exec /bin/bash -p -c "$1" bash "$2" "$3" "$4"; fi
exec /bin/sh -c "$1" sh "$2" "$3" "$4"
"""
# `cat` by its path, since PATH is the user's. The variable is set for it alone, so it shows what the shell exports.
_DUMP = (
    "{{ set +eux; [ -s {path} ] || "
    '(umask 077; {{ pwd -P; printf "\\000"; {name}={token} /bin/cat /proc/self/environ; }} >{path}); '
    "}} </dev/null >/dev/null 2>&1"
)
# One line, so that the shell counts the lines of the user's text from 1. The trap is for `exit`; the user's own trap
# takes its place, so the end of the text is an end of its own. Keywords, since builtins may be functions by then.
_SHELL = (
    "{unset}trap '{dump}' EXIT; "
    'if cd -P -- "$2" 2>/dev/null; then :; '
    "else printf '%s\\n' \"session: $2 cannot be entered; this runs in $PWD\" >&2; fi; "
    'if [ "$3" ]; then OLDPWD=$3; else unset -v OLDPWD; fi; export OLDPWD; '
    'eval "shift 3; $1"; for SKERRY_EXIT_CODE in "$?"; do {dump}; exit "$SKERRY_EXIT_CODE"; done'
)


@dataclass(frozen=True, slots=True)
class Dump:
    """What a command left. `cwd` is None when it has no name any more."""

    cwd: str | None
    env: Mapping[str, str]


def dump_path(token: str) -> str:
    """In the sandbox's memory, where only root writes."""
    return f"/run/skerry/{token}"


def wrap(text: str, state: ShellState, token: str) -> tuple[str, ...]:
    """The argv that runs `text` in a session."""
    unset = f"unset -v {' '.join(sorted(state.unset))}; " if state.unset else ""
    dump = _DUMP.format(name=_TOKEN_NAME, token=token, path=dump_path(token))
    shell = _SHELL.format(unset=unset, dump=dump)
    return ("/bin/sh", "-c", LAUNCH, "sh", shell, text, state.cwd, state.set.get("OLDPWD", ""))


def environment(state: ShellState, base: Mapping[str, str]) -> dict[str, str]:
    """The environment of a session's command, over a sandbox's."""
    return {name: value for name, value in {**base, **state.set}.items() if name not in state.unset}


def read_dump(data: bytes, token: str) -> Dump | None:
    """What stands in a file that a command left; None when it is not whole, or not by that command."""
    directory, separator, rest = data.partition(b"\0")
    if not separator or not rest.endswith(b"\0") or len(data) > DUMP_LIMIT:
        return None
    env: dict[str, str] = {}
    for entry in rest[:-1].split(b"\0"):
        name, equals, value = entry.decode("utf-8", "surrogateescape").partition("=")
        if equals:
            env[name] = value
    if env.get(_TOKEN_NAME) != token:
        return None
    cwd = directory.removesuffix(b"\n").decode("utf-8", "surrogateescape")
    return Dump(cwd if cwd.startswith("/") and len(directory) <= 4096 else None, env)


def fold(state: ShellState, dump: Dump, base: Mapping[str, str]) -> ShellState | None:
    """The session's state after a command; None when it is more than can be kept."""
    env = {name: value for name, value in dump.env.items() if _NAME.fullmatch(name) and name not in _NEVER}
    changed = {name: value for name, value in env.items() if base.get(name) != value}
    unset = frozenset(name for name in base if name not in env and name not in _NEVER and _NAME.fullmatch(name))
    new = ShellState(dump.cwd or state.cwd, changed, unset)
    size = len(json.dumps([new.cwd, changed]))
    return new if size <= _STATE_LIMIT and len(changed) <= _NAMES_LIMIT else None
