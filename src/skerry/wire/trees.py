"""Whole directories on the wire (snake_case).

`GET …/files/tar?path=` answers a tar stream (`application/x-tar`); its last entry is the directory itself (`./`), and
if something was left out that entry has the pax record `SKERRY.skipped`: JSON `{"skipped": [{"path", "reason"}],
"skipped_count"}`. A stream that breaks off has no end marker, and its connection is closed in the middle.
`PUT …/files/tar?path=` takes one, and `PUT …/files/batch` many files in JSON; both answer `Unpacked`.
`GET …/files/watch?path=&recursive=` answers events `watching`, then `created`, `modified`, `removed`, `moved_from`,
`moved_to` and `overflow` (some changes are not told: look again), each with `{"path", "path_base64"?}`; at last `error`
with `{"code", "message"}`.
"""

from typing import Annotated

from pydantic import AwareDatetime, Field

from skerry.wire.base import Answer, Request
from skerry.wire.files import PathText

Mode = Annotated[str, Field(pattern="^0?[0-7]{3,4}$", description="Octal, such as 0644.")]


class BatchFile(Request):
    """One file of a batch; `path` is relative to the batch's."""

    path: PathText
    content_base64: str
    mode: Mode = "0644"


class WriteBatch(Request):
    """PUT …/files/batch."""

    path: PathText = "/workspace"
    files: list[BatchFile]


class SkippedEntry(Answer):
    """An entry that was left out: its name in the archive, and why."""

    path: str
    path_base64: str | None = None
    reason: str


class Unpacked(Answer):
    """`count` entries are there; `skipped` names the first of the `skipped_count` others."""

    count: int
    size_bytes: int
    skipped: list[SkippedEntry]
    skipped_count: int


class TouchFile(Request):
    """POST …/files/touch. The time is `modified_at`, or the present; nothing there: an empty file is made."""

    path: PathText
    modified_at: Annotated[AwareDatetime, Field(strict=False)] | None = None  # JSON has no times: text
    mode: Mode | None = None
    create: bool = True
