"""/v1/snapshots and /v1/sandboxes/{id}/snapshots"""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from skerry.api.call import Caller, RepeatKey, answer, once
from skerry.api.render import snapshot_view
from skerry.control import snapshots
from skerry.wire.base import Page
from skerry.wire.snapshots import CreateSnapshot, SnapshotView

router = APIRouter(tags=["snapshots"])


@router.post("/v1/sandboxes/{sandbox_id}/snapshots", status_code=201, response_model=SnapshotView)
async def create_snapshot(
    call: Caller, sandbox_id: str, body: CreateSnapshot | None = None, key: RepeatKey = None
) -> Response:
    """Keep a sandbox's files and configuration as they are now, running or stopped. What runs is not disturbed."""
    wanted = body or CreateSnapshot()
    snapshot = await snapshots.create(
        call.deps, call.account_id, sandbox_id, name=wanted.name, once=once(call, key, wanted)
    )
    return answer(snapshot_view(snapshot), 201, {"Location": f"/v1/snapshots/{snapshot.id}"})


@router.get("/v1/snapshots", response_model=Page[SnapshotView])
async def list_snapshots(
    call: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
    before: str | None = None,
    name: Annotated[str | None, Query(max_length=200, description="Only snapshots of exactly this name.")] = None,
    source_sandbox_id: Annotated[
        str | None, Query(max_length=64, description="Only those of this sandbox, which may be gone.")
    ] = None,
) -> Response:
    """Newest first. `next` is the `before` of the following page. Values in `env` are `[redacted]` here."""
    page, following = await snapshots.list_page(
        call.deps, call.account_id, source_sandbox_id=source_sandbox_id, name=name, limit=limit, before=before
    )
    views = [snapshot_view(snapshot, secrets=False) for snapshot in page]
    return answer(Page[SnapshotView](data=views, next=following))


@router.get("/v1/snapshots/{snapshot_id}", response_model=SnapshotView)
async def get_snapshot(call: Caller, snapshot_id: str) -> Response:
    """One snapshot."""
    return answer(snapshot_view(await snapshots.get(call.deps, call.account_id, snapshot_id)))


@router.delete("/v1/snapshots/{snapshot_id}", status_code=204)
async def delete_snapshot(call: Caller, snapshot_id: str) -> Response:
    """Delete a snapshot. Sandboxes that were made from it stay as they are."""
    await snapshots.delete(call.deps, call.account_id, snapshot_id)
    return Response(status_code=204)
