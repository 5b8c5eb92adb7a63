"""What of a command and an environment fits: checked before anything is recorded. Pure."""

import json
from collections.abc import Mapping

from skerry.model.command import ExecSpec
from skerry.model.errors import Invalid

# Linux gives a program no longer argument or variable (MAX_ARG_STRLEN, 128 KiB with its NUL).
ARGUMENT_BYTES = 131_071
# One frame to a sandbox holds 262,144; the rest is for what the node and sbxd add.
COMMAND_BYTES = 258_048
# A sandbox's own environment goes along with each command, and must leave room for it.
ENV_BYTES = 98_304
ROOM_BYTES = 4_096  # for the variables that every sandbox has


def check_env(env: Mapping[str, str]) -> None:
    """Raises Invalid when a sandbox could not give this environment to its commands."""
    _check_variables(env)
    if (size := _json_bytes(env)) > ENV_BYTES:
        raise Invalid(f"'env' takes {size} bytes as JSON; a sandbox's may take {ENV_BYTES}. Use a file.", field="env")


def check_command(spec: ExecSpec) -> None:
    """Raises Invalid when the kernel would not start it, or a sandbox not be told of it; the field is named."""
    if spec.shell is not None:
        _check_argument(spec.shell, "command", "Write it to a file and run that, or give it as `stdin` to a shell.")
    for number, argument in enumerate(spec.argv):
        _check_argument(argument, f"argv.{number}", "Put what is long into a file or into `stdin`.")
    _check_variables(spec.env)
    field = "argv" if spec.argv else "command"
    size = _json_bytes({"argv": spec.argv, "shell": spec.shell, "env": spec.env, "cwd": spec.cwd, "user": spec.user})
    if size > COMMAND_BYTES:
        raise Invalid(
            f"The command takes {size} bytes as JSON with its environment; {COMMAND_BYTES} is the most. "
            "Put what is long into a file or into `stdin`.",
            field=field,
        )


def check_startup(command: str, env: Mapping[str, str]) -> None:
    """Raises Invalid when a sandbox with this environment could not run its startup command."""
    _check_argument(command, "startup_command", "Put it into a file.")
    size = _json_bytes({"shell": command, "env": env})
    if size > COMMAND_BYTES - ROOM_BYTES:
        raise Invalid(
            f"'startup_command' takes {size} bytes as JSON with 'env'; {COMMAND_BYTES - ROOM_BYTES} is the most.",
            field="startup_command",
        )


def _check_argument(text: str, field: str, instead: str) -> None:
    if (size := _bytes(text)) > ARGUMENT_BYTES:
        raise Invalid(f"'{field}' is {size} bytes; Linux allows {ARGUMENT_BYTES}. {instead}", field=field)


def _check_variables(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if (size := _bytes(name) + 1 + _bytes(value)) > ARGUMENT_BYTES:
            raise Invalid(
                f"'env.{name}' is {size} bytes; Linux allows {ARGUMENT_BYTES}. Use a file.", field=f"env.{name}"
            )


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def _json_bytes(value: Mapping[str, object]) -> int:
    return len(json.dumps(value, separators=(",", ":")))
