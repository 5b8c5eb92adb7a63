"""Code runs: a text given to an interpreter of the sandbox, without a shell that would read it first."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from skerry.control import commands
from skerry.control.commands import NewCommand, Result
from skerry.control.deps import Deps
from skerry.model.command import CommandCause
from skerry.model.errors import Invalid, Refused
from skerry.model.ids import AccountId

# These read all of their standard input before they begin.
_READERS: Mapping[str, tuple[str, ...]] = {"python": ("python3", "-"), "node": ("node", "-"), "ruby": ("ruby", "-")}
# A shell takes its script line by line, and what it starts would read on in it: so the script has a descriptor of its
# own, and the standard input is empty as it is for the others.
_SHELLS = ("bash", "sh")
OWN_DESCRIPTOR = 'command -v "$1" >/dev/null || exit 127; exec 3<&0 </dev/null; exec "$1" /dev/fd/3'
_ALIASES: Mapping[str, str] = {"python3": "python", "javascript": "node", "js": "node"}
LANGUAGES = (*_READERS, *_SHELLS)


@dataclass(frozen=True, slots=True)
class NewCode:
    """`language` is one of LANGUAGES or a common alias of one, in any case."""

    language: str
    code: str = field(repr=False)
    timeout_s: int | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None


async def run(deps: Deps, account_id: AccountId, sandbox_id: str, wanted: NewCode) -> Result:
    """Run code and wait for its end.

    Raises:
        Invalid: `unknown_language`.
        Refused: `language_not_installed`: this sandbox has no such interpreter.
        NotFound, Conflict, Unavailable: As `commands.start`.
    """
    language = _language(wanted.language)
    result = await commands.run(deps, account_id, sandbox_id, _command(language, wanted))
    exit = result.command.exit
    if exit is None:
        return result
    missing = exit.cause is CommandCause.NOT_STARTED and exit.detail.startswith("not_found")
    if missing or (language in _SHELLS and exit.code == 127 and not result.captured.output_bytes):
        raise Refused(
            f"'{language}' is not installed in this sandbox. Use a template that has it, or install it.",
            code="language_not_installed",
            field="language",
        )
    return result


def _command(language: str, wanted: NewCode) -> NewCommand:
    argv = _READERS.get(language) or ("/bin/sh", "-c", OWN_DESCRIPTOR, "sh", language)
    new = NewCommand(argv=argv, timeout_s=wanted.timeout_s, env=wanted.env, cwd=wanted.cwd, shown=wanted.code)
    return replace(new, stdin=wanted.code.encode("utf-8", "surrogateescape"))


def _language(name: str) -> str:
    known = _ALIASES.get(name.lower(), name.lower())
    if known not in LANGUAGES:
        raise Invalid(
            f"Unknown language '{name[:50]}'. There are: {', '.join(LANGUAGES)}.",
            code="unknown_language",
            field="language",
        )
    return known
