"""/v1/sandboxes/{id}/files"""

import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.api.download import download
from skerry.api.exact import exact, upload
from skerry.api.render import file_entry
from skerry.api.streaming import BYTES, Stream
from skerry.control import files
from skerry.model.errors import Invalid
from skerry.wire.files import FileContent, FileEntry, FileList, MakeDirectory, MoveFile, WriteFile

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/files", tags=["files"])

_INLINE_LIMIT = 64 * 1024 * 1024
_PIECE = 262_144

PathQuery = Annotated[str, Query(description="Absolute, or relative to /workspace; any bytes, percent-encoded.")]
PARTS: dict[int | str, dict[str, Any]] = {
    206: {**BYTES[200], "description": "The range"},
    416: {"description": "Nothing of the range exists"},
}
RAW_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/octet-stream": {}}}}


@router.post("", response_model=FileEntry)
async def write_file(call: Caller, sandbox_id: str, body: WriteFile) -> Response:
    """Replace a small file, all or nothing; parents are made."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    return answer(file_entry(await files.write(guest, body.path, _pieces(decoded(body.content_base64)))))


@router.get("", response_model=FileContent)
async def read_file(request: Request, call: Caller, sandbox_id: str, path: PathQuery) -> Response:
    """A small file in JSON; larger ones are streamed by `files/raw`."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    info, content = await files.read_small(guest, exact(request, path), _INLINE_LIMIT)
    text = base64.b64encode(content).decode()
    return answer(FileContent(path=file_entry(info).path, content_base64=text, size_bytes=len(content)))


@router.delete("", status_code=204)
async def remove_file(
    request: Request, call: Caller, sandbox_id: str, path: PathQuery, recursive: bool = False
) -> Response:
    """Remove a file, a symlink itself, an empty directory, or with `recursive` a tree."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    await files.remove(guest, exact(request, path), recursive=recursive)
    return Response(status_code=204)


@router.get("/list", response_model=FileList)
async def list_files(request: Request, call: Caller, sandbox_id: str, path: PathQuery = files.WORKSPACE) -> Response:
    """The entries of a directory, by name."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    found = await files.list_directory(guest, exact(request, path))
    return answer(FileList(data=[file_entry(info) for info in found]))


@router.get("/stat", response_model=FileEntry)
async def stat_file(request: Request, call: Caller, sandbox_id: str, path: PathQuery, follow: bool = True) -> Response:
    """One entry; with `follow` what a symlink leads to."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    return answer(file_entry(await files.stat(guest, exact(request, path), follow=follow)))


@router.post("/mkdir", response_model=FileEntry)
async def make_directory(call: Caller, sandbox_id: str, body: MakeDirectory) -> Response:
    """Make a directory. With `parents`, one that exists is success."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    return answer(file_entry(await files.mkdir(guest, body.path, parents=body.parents, mode=int(body.mode, 8))))


@router.post("/move", response_model=FileEntry)
async def move_file(call: Caller, sandbox_id: str, body: MoveFile) -> Response:
    """Rename. To another file system inside a file is copied, all or nothing; a directory is refused."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    return answer(file_entry(await files.move(guest, body.source, body.target, overwrite=body.overwrite)))


@router.get("/raw", response_class=Response, responses=BYTES | PARTS)
@router.head("/raw", response_class=Response, responses={**BYTES})
async def read_raw(
    request: Request,
    call: Caller,
    sandbox_id: str,
    path: PathQuery,
    range: Annotated[str | None, Header()] = None,
    if_range: Annotated[str | None, Header()] = None,
) -> Response:
    """A file's bytes, or one `Range` of them. Several ranges are answered with the whole file."""
    async with AsyncExitStack() as stack:
        guest = await stack.enter_async_context(files.guest_in_use(call.deps, call.account_id, sandbox_id))
        told = await download(guest, exact(request, path), range, if_range, head=request.method == "HEAD")
        if isinstance(told, Stream):
            told.close_too(stack.pop_all().aclose)
        return told


@router.put("/raw", response_model=FileEntry, openapi_extra=RAW_BODY)
async def write_raw(
    request: Request,
    call: Caller,
    sandbox_id: str,
    path: PathQuery,
    mode: Annotated[str | None, Query(pattern="^0?[0-7]{3,4}$", description="Octal, such as 0644.")] = None,
) -> Response:
    """Replace a file with the body, all or nothing; parents are made. A broken upload leaves what was there."""
    async with files.guest_in_use(call.deps, call.account_id, sandbox_id) as guest:
        chunks = upload(request, call.deps.config.upload_limit_mb * 1024 * 1024)
        info = await files.write(guest, exact(request, path), chunks, mode=None if mode is None else int(mode, 8))
        return answer(file_entry(info))


def decoded(content: str, field: str = "content_base64") -> bytes:
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"'{field}' is not base64: {error}.", field=field) from error


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(content), _PIECE):
        yield content[start : start + _PIECE]
