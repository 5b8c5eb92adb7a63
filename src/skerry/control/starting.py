"""Why a command could not be started, in the words of the request. Pure."""

from skerry.model.command import ExecSpec
from skerry.model.errors import GuestError

_SHOWN = 200


def why_not_started(spec: ExecSpec, error: GuestError) -> str:
    """`code: ` and which field of the request could not be used, with what the sandbox said of it."""
    return f"{error.guest_code}: {_blame(spec, error)}"


def _blame(spec: ExecSpec, error: GuestError) -> str:
    if error.guest_code == "cwd":
        return f"'working_directory' {_shown(spec.cwd)} cannot be entered ({error.message})."
    if error.guest_code == "user":
        return f"'user' {_shown(spec.user)} cannot be used ({error.message})."
    if error.guest_code == "limit":
        return f"the sandbox has no room for another command ({error.message}). End some that run, or wait."
    if error.errno is None:
        return error.message
    if spec.argv:
        return f"the program {_shown(spec.argv[0])} of 'argv' cannot be run ({error.message})."
    return f"the sandbox has no shell that can run 'command' ({error.message}). Give 'argv'."


def _shown(text: str | None) -> str:
    return "" if text is None else repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
