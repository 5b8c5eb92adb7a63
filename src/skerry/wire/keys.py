"""API keys on the wire (snake_case)."""

from datetime import datetime

from pydantic import Field

from skerry.wire.base import Answer, PersonalName, Request


class CreateKey(Request):
    """POST /v1/keys."""

    name: PersonalName = "default"


class KeyView(Answer):
    """`key`, the secret, is set in the answer to its creation and never again; `prefix` is how it begins.

    `last_used_at` is exact to a minute. `prefix` is null where the server never saw the secret.
    """

    id: str
    name: str
    prefix: str | None = None
    key: str | None = Field(None, repr=False)
    created_at: datetime
    last_used_at: datetime | None = None
