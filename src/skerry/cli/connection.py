"""From the command line to a server: which one, and which sandbox a person means."""

import os
from typing import TYPE_CHECKING

from skerry.model.errors import Conflict, Invalid, NotFound, Refused, SkerryError, Unauthorized

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.sdk import Sandbox, Skerry


def config(**overrides: object) -> "Config":
    """The settings in force on this machine."""
    from skerry.config import load

    return load(overrides)


# As the extra `server` in pyproject.toml; a dependency has its module's name.
_SERVER_MODULES = (
    "alembic",
    "blake3",
    "cryptography",
    "fastapi",
    "obstore",
    "prometheus_client",
    "pyfastcdc",
    "pyroute2",
    "sqlalchemy",
    "structlog",
    "uvicorn",
    "uvloop",
    "zstandard",
)


def require_server() -> None:
    """Raises Refused where only the client is installed."""
    from importlib.util import find_spec

    missing = [name for name in _SERVER_MODULES if find_spec(name) is None]
    if missing:
        raise Refused(
            f"This is the client alone: the server's part is not installed (no {', '.join(missing)}). Install the extra"
            " `server` (pip install 'skerry[server]', in a clone: pip install '.[server]'), or use `sudo ./skerry up`"
            " of a clone, which installs all of it.",
            code="no_server",
        )


SHORTEST = 4  # characters of an id that may stand for it: less is a slip, or a variable that is not set


def address() -> tuple[str, str]:
    """Address and key: of the environment, else as `skerry login` kept them, else of the instance on this machine.

    Every key goes to the server that it was given for, and to no other: no file in a working directory says where.

    Raises:
        Unauthorized: The environment names a server for which there is no key.
        Unavailable: None of them is there.
    """
    from skerry.cli import logins

    url, key = os.environ.get("SKERRY_URL"), os.environ.get("SKERRY_API_KEY")
    if url and key:
        return url, key
    if url and (kept := logins.key_of(url)):
        return url, kept
    # Whoever names an instance by its home, or brings a key without an address, means this machine's.
    if not (url or key or os.environ.get("SKERRY_HOME")) and (chosen := logins.current()):
        return chosen, logins.key_of(chosen) or ""
    return _this_machine(url, key)


def _this_machine(url: str | None, key: str | None) -> tuple[str, str]:
    from skerry import instance
    from skerry.config import locate

    here = locate()
    if url and not _is_here(url, here):
        raise Unauthorized(
            f"SKERRY_URL is {url}, which is not this machine's server: set SKERRY_API_KEY for it, or"
            " `skerry login` to it."
        )
    return instance.url(here), key or instance.key(here)


def _is_here(url: str, here: "Config") -> bool:
    from skerry import instance

    try:
        return url.rstrip("/") == instance.url(here).rstrip("/")
    except SkerryError:  # no server here, or none that we may know of
        return False


def client() -> "Skerry":
    """A client of that server."""
    from skerry.sdk import Skerry

    url, key = address()
    return Skerry(url, key)


_ENDED = ("failed", "destroying", "destroyed")


def find(server: "Skerry", word: str | None, *, ended_too: bool = False) -> "Sandbox":
    """The sandbox that `word` names: its id, its name, a label as KEY=VALUE, or the beginning of its id.

    Of several the only one that has not ended is meant, unless `ended_too`. None: the one that
    `skerry use` chose for this directory.

    Raises:
        NotFound: None.
        Conflict: Several; the message lists them.
        Invalid: No word, and nothing chosen; or chosen at another server.
    """
    from skerry.model.ids import is_id

    if word is None:
        word = _chosen(server)
    if is_id(word, "sbx"):
        return server.get(word)
    found = matching(server, word)
    if not found:
        raise NotFound(f"No sandbox has the name, label or id '{word}'. `skerry ls` lists yours.", field="sandbox")
    living = [] if ended_too else [box for box in found if box.status not in _ENDED]
    if len(found) > 1 and len(living) != 1:
        listed = ", ".join(f"{box.id} ({box.name or 'no name'}, {box.status})" for box in found[:8])
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        raise Conflict(f"'{word}' means {len(found)} sandboxes: {listed}{more}. Give the id.", field="sandbox")
    return (living or found)[0]


def matching(server: "Skerry", word: str) -> "list[Sandbox]":
    """All that a word may mean: by name, else by label, else by the beginning of the id."""
    boxes = server.list().all()
    found = [box for box in boxes if box.name == word or box.id == word]
    key, equals, value = word.partition("=")
    if not found and equals and key:
        found = [box for box in boxes if has_label(box, key, value)]
    beginning = word if word.startswith("sbx_") else f"sbx_{word}"
    if not found and len(beginning) >= len("sbx_") + SHORTEST:
        found = [box for box in boxes if box.id.startswith(beginning)]
    return found


def has_label(box: "Sandbox", key: str, value: str) -> bool:
    """Whether the metadata has this member with this value, as text: what is no text counts as its JSON."""
    import json

    if key not in box.info.metadata:
        return False
    held = box.info.metadata[key]
    return (held if isinstance(held, str) else json.dumps(held)) == value


def in_use() -> bool:
    """Whether `skerry use` chose a sandbox for this directory."""
    from skerry.cli import context

    return context.current() is not None


def _chosen(server: "Skerry") -> str:
    from skerry.cli import context

    here = context.current()
    if here is None:
        raise Invalid(
            "Name a sandbox (`skerry ls` lists yours), or choose one for this directory: skerry use SANDBOX",
            field="sandbox",
        )
    if here.server != server.url:
        raise Invalid(
            f"{here.directory / context.NAME} chooses a sandbox at {here.server}, but commands go to {server.url} now."
            " Name a sandbox, or choose another: skerry use SANDBOX",
            field="sandbox",
        )
    return here.sandbox_id
