"""/v1/sandboxes/{id}/files/tar, /batch, /watch and /touch"""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.api.exact import exact, upload
from skerry.api.files import PathQuery, decoded
from skerry.api.render import file_entry, shown_with_bytes, unpacked_view
from skerry.api.streaming import SSE, Stream, event, events
from skerry.control import files, trees
from skerry.control.streams import closing
from skerry.model.errors import SkerryError
from skerry.model.files import ChangeKind, FileChange
from skerry.wire.files import FileEntry
from skerry.wire.trees import TouchFile, Unpacked, WriteBatch

router = APIRouter(prefix="/v1/sandboxes/{sandbox_id}/files", tags=["files"])

_TAR: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-tar": {}}, "description": "A tar stream"}}
_TAR_BODY: dict[str, Any] = {"requestBody": {"required": True, "content": {"application/x-tar": {}}}}
_HEADERS = {"Content-Disposition": "attachment", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
_EVENTS = {
    ChangeKind.CREATE: "created",
    ChangeKind.MODIFY: "modified",
    ChangeKind.REMOVE: "removed",
    ChangeKind.MOVE_FROM: "moved_from",
    ChangeKind.MOVE_TO: "moved_to",
    ChangeKind.OVERFLOW: "overflow",
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@router.get("/tar", response_class=Response, responses=_TAR)
async def read_tar(request: Request, call: Caller, sandbox_id: str, path: PathQuery = files.WORKSPACE) -> Response:
    """A directory as a tar stream. Links are stored, never followed; what is left out is named in the last entry."""
    async with AsyncExitStack() as stack:
        guest = await stack.enter_async_context(files.guest_in_use(call.deps, call.account_id, sandbox_id))
        archive = await stack.enter_async_context(trees.pack(call.deps, guest, exact(request, path)))
        chunks = aiter(archive)
        return Stream(chunks, 200, _HEADERS, "application/x-tar", close=stack.pop_all().aclose)


@router.put("/tar", response_model=Unpacked, openapi_extra=_TAR_BODY)
async def write_tar(request: Request, call: Caller, sandbox_id: str, path: PathQuery = files.WORKSPACE) -> Response:
    """Unpack the body below a directory, which is made. Entries that lead out of it are skipped, with a reason each."""
    async with files.guest_in_use(call.deps, call.account_id, sandbox_id) as guest:
        chunks = upload(request, trees.limits(call.deps).max_bytes)
        return answer(unpacked_view(await trees.unpack(call.deps, guest, exact(request, path), chunks)))


@router.put("/batch", response_model=Unpacked)
async def write_batch(call: Caller, sandbox_id: str, body: WriteBatch) -> Response:
    """Write many small files below a directory in one call; each is replaced whole, parents are made."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    wanted = [
        trees.NewFile(file.path, decoded(file.content_base64, f"files.{number}.content_base64"), int(file.mode, 8))
        for number, file in enumerate(body.files)
    ]
    return answer(unpacked_view(await trees.write_batch(call.deps, guest, body.path, wanted)))


@router.post("/touch", response_model=FileEntry)
async def touch_file(call: Caller, sandbox_id: str, body: TouchFile) -> Response:
    """Set a file's time, and its mode if given; an empty file is made where nothing is."""
    guest = await files.open_guest(call.deps, call.account_id, sandbox_id)
    at_ns = None if body.modified_at is None else (body.modified_at - _EPOCH) // timedelta(microseconds=1) * 1000
    mode = None if body.mode is None else int(body.mode, 8)
    return answer(file_entry(await files.touch(guest, body.path, at_ns, mode=mode, create=body.create)))


@router.get("/watch", response_class=Response, responses={**SSE})
async def watch_files(
    request: Request, call: Caller, sandbox_id: str, path: PathQuery = files.WORKSPACE, recursive: bool = False
) -> Response:
    """Changes in a directory as they happen, until the client leaves or the sandbox ends."""
    async with AsyncExitStack() as stack:
        guest = await stack.enter_async_context(files.guest_in_use(call.deps, call.account_id, sandbox_id))
        watching = trees.watch(guest, exact(request, path), recursive=recursive)
        changes = await stack.enter_async_context(watching)
        return events(_told(changes), close=stack.pop_all().aclose)


async def _told(changes: AsyncIterator[FileChange]) -> AsyncIterator[bytes]:
    yield event("watching", "{}")
    try:
        async with closing(changes):
            async for change in changes:
                yield event(_EVENTS[change.kind], json.dumps(shown_with_bytes(change.path)))
    except SkerryError as error:
        yield event("error", json.dumps({"code": error.code, "message": error.message}))
