"""/v1/keys"""

from fastapi import APIRouter
from starlette.responses import Response

from skerry.api.call import Caller, answer
from skerry.control import accounts
from skerry.model.account import ApiKey
from skerry.model.ids import KeyId
from skerry.wire.base import Page
from skerry.wire.keys import CreateKey, KeyView

router = APIRouter(tags=["keys"])


@router.get("/v1/keys", response_model=Page[KeyView])
async def list_keys(call: Caller) -> Response:
    """The account's keys, without their secrets."""
    return answer(Page[KeyView](data=[_view(key) for key in await accounts.list_keys(call.deps, call.account_id)]))


@router.post("/v1/keys", status_code=201, response_model=KeyView)
async def create_key(call: Caller, body: CreateKey) -> Response:
    """A new key. Its secret is in this answer and nowhere else."""
    key, secret = await accounts.create_key(call.deps, call.account_id, body.name)
    return answer(_view(key, secret), 201)


@router.delete("/v1/keys/{key_id}", status_code=204)
async def delete_key(call: Caller, key_id: str) -> Response:
    """End a key at once. The one that the request came with, too, but never the account's only one (409 `last_key`)."""
    await accounts.delete_key(call.deps, call.account_id, KeyId(key_id))
    return Response(status_code=204)


def _view(key: ApiKey, secret: str | None = None) -> KeyView:
    return KeyView(
        id=key.id,
        name=key.name,
        prefix=key.hint or None,
        key=secret,
        created_at=key.created_at,
        last_used_at=key.last_used_at,
    )
