"""Composing what sbxd is asked: nouns to OPEN objects, refused here when sbxd could not take them. No I/O."""

import math
import re
from collections.abc import Mapping

from skerry.model.command import ExecSpec, TerminalSize
from skerry.model.errors import Invalid

_COMMAND_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_MAX_DEADLINE_MS = (1 << 53) - 1
SCOPES = ("tree", "group", "main")


def text(value: str, field: str) -> str:
    """A string that can become bytes inside: no NUL, no surrogate that stands for no byte."""
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise Invalid("A lone surrogate stands for no byte, so it cannot be passed on.", field=field) from error
    if "\0" in value:
        raise Invalid("A NUL character cannot be passed on: names and arguments end there.", field=field)
    return value


def path(value: str, field: str = "path") -> str:
    """An absolute path."""
    if not value.startswith("/"):
        raise Invalid("The path has to be absolute, such as /workspace/file.", field=field)
    return text(value, field)


def time_ns(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise Invalid("A time in nanoseconds fits into 64 bits.", field="mtime_ns")
    return value


def environment(env: Mapping[str, str]) -> dict[str, str]:
    for name in env:
        if not name or "=" in name:
            raise Invalid("An environment variable's name is not empty and has no '='.", field="env")
    return {text(name, "env"): text(value, "env") for name, value in env.items()}


def command_id(value: str) -> str:
    if not _COMMAND_ID.fullmatch(value):
        raise Invalid("A command's id has 1 to 64 characters of A-Z, a-z, 0-9, '_', '.' and '-'.", field="id")
    return value


def terminal(size: TerminalSize) -> dict[str, int]:
    """A PTY's size; 0 is left to sbxd, which takes it as 80×24."""
    if not (0 <= size.cols <= 65_535 and 0 <= size.rows <= 65_535):
        raise Invalid("A terminal has 1 to 65535 columns and rows (0: 80 and 24).", field="tty")
    return {"cols": size.cols, "rows": size.rows}


def execute(spec: ExecSpec) -> dict[str, object]:
    """The OPEN of a command.

    Raises:
        Invalid: Not exactly one of argv and shell, or a member that sbxd cannot take.
    """
    if (spec.shell is None) == (not spec.argv):
        raise Invalid("A command has exactly one of 'argv' and 'shell'.", field="argv")
    request: dict[str, object] = {"op": "exec", "id": command_id(spec.id)}
    if spec.shell is not None:
        request["shell"] = text(spec.shell, "shell")
    else:
        request["argv"] = [text(argument, "argv") for argument in spec.argv]
    if spec.cwd is None:
        request["cwd_fallback"] = True
    else:
        request["cwd"] = path(spec.cwd, "cwd")
    if spec.env:
        request["env"] = environment(spec.env)
    if spec.user is not None:
        request["user"] = text(spec.user, "user")
    if spec.stdin:
        request["stdin"] = True
    if spec.tty is not None:
        request["tty"] = terminal(spec.tty)
    if spec.timeout_s is not None:
        request["deadline_ms"] = _deadline_ms(spec.timeout_s)
    return request


def _deadline_ms(timeout_s: float) -> int:
    if not (math.isfinite(timeout_s) and timeout_s > 0):
        raise Invalid("A command's deadline is more than 0 seconds.", field="timeout_s")
    return min(max(1, round(timeout_s * 1000)), _MAX_DEADLINE_MS)
