"""From the command line to a server: which one, and which sandbox a person means."""

import os
from typing import TYPE_CHECKING

from skerry.model.errors import Conflict, NotFound, Refused, Unauthorized

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
    "cryptography",
    "fastapi",
    "prometheus_client",
    "pyroute2",
    "sqlalchemy",
    "structlog",
    "uvicorn",
    "uvloop",
    "websockets",
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
    """Address and key: of the environment, else of the instance on this machine.

    Raises:
        Unavailable: Neither is there.
    """
    url, key = os.environ.get("SKERRY_URL"), os.environ.get("SKERRY_API_KEY")
    if url and key:
        return url, key
    from skerry import instance
    from skerry.config import locate

    here = locate()
    if url and url.rstrip("/") != instance.url(here).rstrip("/"):
        raise Unauthorized(f"SKERRY_URL is {url}, which is not this machine's server: set SKERRY_API_KEY for it.")
    return instance.url(here), key or instance.key(here)


def client() -> "Skerry":
    """A client of that server."""
    from skerry.sdk import Skerry

    url, key = address()
    return Skerry(url, key)


def find(server: "Skerry", word: str) -> "Sandbox":
    """The sandbox that `word` names: its id, its name, or the beginning of one id.

    Raises:
        NotFound: None.
        Conflict: Several; the message lists them.
    """
    from skerry.model.ids import is_id

    if is_id(word, "sbx"):
        return server.get(word)
    boxes = server.list()
    beginning = word if word.startswith("sbx_") else f"sbx_{word}"
    found = [box for box in boxes if box.name == word]
    if not found and len(beginning) >= len("sbx_") + SHORTEST:
        found = [box for box in boxes if box.id.startswith(beginning)]
    if not found:
        raise NotFound(f"No sandbox has the name or id '{word}'. `skerry ls` lists yours.", field="sandbox")
    if len(found) > 1:
        listed = ", ".join(f"{box.id} ({box.name or 'no name'})" for box in found[:8])
        raise Conflict(f"'{word}' means {len(found)} sandboxes: {listed}. Give more of the id.", field="sandbox")
    return found[0]
