"""The servers that `skerry login` keeps, each with its key, and which one is used. Asks no server."""

from pathlib import Path
from typing import Any, cast

from skerry.cli import private

FILE = "login.json"


def current() -> str | None:
    """The address of the server that is used; None: none is kept."""
    address = private.read(FILE).get("current")
    return address if isinstance(address, str) else None


def key_of(address: str) -> str | None:
    """The key kept for exactly this server."""
    key = _servers(private.read(FILE)).get(address.rstrip("/"))
    return key if isinstance(key, str) else None


def keep(address: str, key: str) -> Path:
    """Keep a key, and use its server from now on. The file's path."""
    held = private.read(FILE)
    return private.write(FILE, {"current": address, "servers": {**_servers(held), address: key}})


def forget(address: str) -> bool:
    """Forget a server's key. False: none was kept. Another server that is kept is used only after `login` to it."""
    held = private.read(FILE)
    servers = dict(_servers(held))
    if servers.pop(address, None) is None:
        return False
    now = held.get("current")
    private.write(FILE, {"current": None if now == address else now, "servers": servers})
    return True


def _servers(held: dict[str, Any]) -> dict[str, Any]:
    servers = held.get("servers")
    return cast(dict[str, Any], servers) if isinstance(servers, dict) else {}
