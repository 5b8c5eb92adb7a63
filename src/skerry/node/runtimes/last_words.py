"""What a runtime said before it gave up, from its JSON log. For messages to people; never parsed for meaning."""

import json
from pathlib import Path
from typing import Any, cast

_LIMIT = 600


def read(log: Path) -> str:
    """The last error in a runtime's log, on one line, bounded; a plain sentence when there is none."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-50:]
    except OSError:
        lines = []
    said = [message for message in map(_error, lines) if message]
    return " ".join(said[-1].split())[:_LIMIT] if said else "it left no message"


def _error(line: str) -> str:
    try:
        entry = json.loads(line)
    except ValueError:
        return line
    if not isinstance(entry, dict):
        return ""
    fields = cast("dict[str, Any]", entry)
    return str(fields.get("msg", "")) if fields.get("level") in ("error", "fatal", "warning") else ""
