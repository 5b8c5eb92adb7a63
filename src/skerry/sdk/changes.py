"""What a watch tells: one change to a file, typed. Pure."""

import base64
import json
import os
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from skerry.model.errors import ProtocolError
from skerry.sdk.errors import error_told
from skerry.sdk.sse import ServerEvent

ChangeKind = Literal["created", "modified", "removed", "moved_from", "moved_to", "overflow"]
_KINDS = frozenset(get_args(ChangeKind))


@dataclass(frozen=True, slots=True)
class FileChange:
    """`overflow`: some changes below `path` were not told, look again. A name that is not UTF-8 has surrogates."""

    kind: ChangeKind
    path: str


def change_from(event: ServerEvent) -> FileChange:
    """The change that an event tells.

    Raises:
        SkerryError: The event tells the watch's end, and why: SandboxGone, for one.
        ProtocolError: The event is none of a watch.
    """
    if event.name == "error":
        raise error_told(event.data)
    try:
        told: Any = json.loads(event.data)
        exact = told.get("path_base64")
        path = os.fsdecode(base64.b64decode(exact)) if exact else str(told["path"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProtocolError("The server told a change in a form that is not known.") from error
    if event.name not in _KINDS:
        raise ProtocolError(f"The server told a change of an unknown kind: {event.name[:50]!r}.")
    return FileChange(cast(ChangeKind, event.name), path)
