"""Where the server is and which key opens it: what the caller gives, else `SKERRY_URL` and `SKERRY_API_KEY`."""

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from skerry.model.errors import Invalid, Unauthorized

DEFAULT_URL = "http://127.0.0.1:7717"


def resolve(url: str | None, api_key: str | None, environ: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The address (without a trailing slash) and the key to use.

    Raises:
        Unauthorized: No key is given or set.
        Invalid: The address is not an http or https URL.
    """
    address = (url or environ.get("SKERRY_URL") or DEFAULT_URL).rstrip("/")
    if not _is_address(address):
        raise Invalid(f"{address!r} is no server address. It looks like {DEFAULT_URL}.", field="url")
    key = api_key or environ.get("SKERRY_API_KEY")
    if not key:
        raise Unauthorized(
            "No API key. Pass api_key=…, or set SKERRY_API_KEY; on the server's machine: "
            'eval "$(./skerry client-env)".'
        )
    if not (key.isascii() and key.isprintable()):
        raise Unauthorized("The API key holds characters that no key has. Was it copied whole, and nothing else?")
    return address, key


def _is_address(text: str) -> bool:
    if not (text.isprintable() and " " not in text):
        return False
    try:
        parts = urlsplit(text)
        _ = parts.port  # parsed only now
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def is_loopback(url: str) -> bool:
    """Whether the address is this machine: then no proxy of the environment is asked."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    from ipaddress import ip_address  # a millisecond and more, which most need not pay

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False  # a name, such as 127.example.org
