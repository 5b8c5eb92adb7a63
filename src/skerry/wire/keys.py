"""API keys on the wire (snake_case)."""

from datetime import datetime

from pydantic import Field

from skerry.wire.base import Answer, Request


class CreateKey(Request):
    """POST /v1/keys."""

    name: str = Field("default", min_length=1, max_length=200)


class KeyView(Answer):
    """`key`, the secret, is set in the answer to its creation and never again."""

    id: str
    name: str
    key: str | None = None
    created_at: datetime
    last_used_at: datetime | None = None
