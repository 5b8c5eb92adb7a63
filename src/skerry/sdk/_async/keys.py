"""The account's API keys."""

from skerry.model.errors import NotFound
from skerry.sdk._async.http import AsyncHttp, segment
from skerry.sdk.requests import answer_of, body_of, request_of
from skerry.wire.base import Page
from skerry.wire.keys import CreateKey, KeyView


class AsyncKeys:
    """`client.keys`."""

    def __init__(self, http: AsyncHttp) -> None:
        self._http = http

    async def create(self, name: str = "default") -> KeyView:
        """A new key of the account. Its secret is in `key`, here and never again."""
        request = request_of(CreateKey, name=name)
        return answer_of(KeyView, await self._http.call("POST", "/v1/keys", body=body_of(request)))

    async def delete(self, key_id: str) -> None:
        """End a key at once, by its id. Safe to call twice.

        Raises:
            Conflict: It is the account's only one (`last_key`).
        """
        try:
            await self._http.call("DELETE", f"/v1/keys/{segment(key_id)}")
        except NotFound:
            return

    async def list(self) -> list[KeyView]:
        """All keys, without their secrets."""
        return answer_of(Page[KeyView], await self._http.call("GET", "/v1/keys")).data
