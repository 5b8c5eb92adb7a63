"""Files on the wire (snake_case).

The published client's JSON calls (`files`, `files/list`) and the native ones: `GET` and `PUT …/files/raw?path=` stream
bytes (`Range` on GET; `mode` octal on PUT), `GET …/files/stat`, `POST …/files/mkdir`, `POST …/files/move`.
Paths are absolute, or relative to /workspace. A name that is not UTF-8 shows with replacements, and as `name_base64`.
"""

from typing import Annotated

from pydantic import Field, StringConstraints

from skerry.wire.base import Answer, Request

PathText = Annotated[str, StringConstraints(min_length=1, max_length=4096, pattern=r"^[^\x00]*$")]


class WriteFile(Request):
    """POST …/files."""

    path: PathText
    content_base64: str


class FileContent(Answer):
    """GET …/files?path=."""

    path: str
    content_base64: str
    size_bytes: int


class FileEntry(Answer):
    """`type` is `file`, `dir`, `symlink`, `fifo`, `socket`, `char` or `block`; `mode` is octal text such as `0644`."""

    name: str
    name_base64: str | None = None
    path: str
    type: str
    size_bytes: int
    mode: str
    uid: int
    gid: int
    modified_at: str
    target: str | None = None


class FileList(Answer):
    """GET …/files/list?path=."""

    data: list[FileEntry]


class MakeDirectory(Request):
    """POST …/files/mkdir."""

    path: PathText
    parents: bool = True
    mode: str = Field("0755", pattern="^0?[0-7]{3,4}$")


class MoveFile(Request):
    """POST …/files/move."""

    source: PathText
    target: PathText
    overwrite: bool = True
