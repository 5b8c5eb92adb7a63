"""What a runtime said before it gave up, from its JSON log. For messages to people; never parsed for meaning."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

_LIMIT = 600
_READ = 65_536


def read(log: Path) -> str:
    """The last error in a runtime's log, on one line, bounded; a plain sentence when there is none."""
    try:
        text = log.read_text(errors="replace")[-_READ:]
    except OSError:
        text = ""
    said = [message for message in _errors(text) if message]
    return " ".join(said[-1].split())[:_LIMIT] if said else "it left no message"


def _errors(text: str) -> Iterator[str]:
    decoder = json.JSONDecoder()
    at = 0
    while (at := text.find("{", at)) >= 0:  # runsc does not end each entry with a newline
        try:
            entry, at = decoder.raw_decode(text, at)
        except ValueError:
            at += 1
            continue
        fields = cast("dict[str, Any]", entry)
        if fields.get("level") in ("error", "fatal", "warning"):
            yield str(fields.get("msg", ""))
