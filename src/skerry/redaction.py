"""Takes secrets out of what is about to be logged: whatever slipped into a line ends here. Knows no log.

The first rule is that nobody logs a secret; this is the net under it. By name of field, and by form: keys of ours,
`Authorization` headers, credentials in addresses.
"""

import re
from collections.abc import Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, cast

GONE = "[redacted]"

# Whole words of a field's name: `git_token` and `X-Api-Key` are among them, `tokens_used` is not.
_NAMES = frozenset(
    {"authorization", "content", "cookie", "credential", "credentials", "env", "key", "passphrase", "password"}
    | {"secret", "stdin", "ticket", "token"}
)
_FORMS = re.compile(
    r"(?P<key>skerry_(?:live|ticket)_)[\w-]{6,}"
    r"|(?P<scheme>\b(?:bearer|basic)\s+)[\w.~+/=-]{6,}"
    r"|(?P<address>://)[^\s/@]+@",
    re.IGNORECASE,
)
_DEEPEST = 6


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor. To come after exceptions were made text."""
    for name, value in event.items():
        event[name] = _clean(name, value, 0)
    return event


def clean_text(text: str) -> str:
    """A text without what has the form of a secret."""
    return _FORMS.sub(_shown, text)


def _shown(match: re.Match[str]) -> str:
    return f"{match['key'] or match['scheme'] or match['address']}{GONE}{'@' if match['address'] else ''}"


@lru_cache(maxsize=1024)
def _is_secret(name: str) -> bool:
    return re.split(r"[_-]", name.lower())[-1] in _NAMES


def _clean(name: str, value: object, depth: int) -> object:
    if _is_secret(name) and value:
        return GONE
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, bytes):
        return f"[{len(value)} bytes]"
    if isinstance(value, bool | int | float | None):
        return value
    if depth >= _DEEPEST:
        return "[…]"
    if isinstance(value, Mapping):
        inner = cast(Mapping[object, object], value)
        return {str(one): _clean(str(one), each, depth + 1) for one, each in inner.items()}
    if isinstance(value, Sequence):
        return [_clean("", each, depth + 1) for each in cast(Sequence[object], value)]
    return clean_text(str(value))
