"""From the command line to a server: which one, and which sandbox a person means."""

import os
from typing import TYPE_CHECKING

from skerry.model.errors import Conflict, NotFound

if TYPE_CHECKING:
    from skerry.config import Config
    from skerry.sdk import Sandbox, Skerry


def config(**overrides: object) -> "Config":
    """The settings in force on this machine."""
    from skerry.config import load

    return load(overrides)


def address() -> tuple[str, str]:
    """Address and key: of the environment, else of the instance on this machine.

    Raises:
        Unavailable: Neither is there.
    """
    url, key = os.environ.get("SKERRY_URL"), os.environ.get("SKERRY_API_KEY")
    if url and key:
        return url, key
    from skerry import instance

    here = config()
    return url or instance.url(here), key or instance.key(here)


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
    found = [box for box in boxes if box.name == word] or [
        box for box in boxes if box.id.startswith((word, f"sbx_{word}"))
    ]
    if not found:
        raise NotFound(f"No sandbox has the name or id '{word}'. `skerry ls` lists yours.", field="sandbox")
    if len(found) > 1:
        listed = ", ".join(f"{box.id} ({box.name or 'no name'})" for box in found[:8])
        raise Conflict(f"'{word}' means {len(found)} sandboxes: {listed}. Give more of the id.", field="sandbox")
    return found[0]
