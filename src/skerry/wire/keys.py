"""API keys on the wire (snake_case)."""

from datetime import datetime

from skerry.wire.base import Answer, PersonalName, Request


class CreateKey(Request):
    """POST /v1/keys."""

    name: PersonalName = "default"


class KeyView(Answer):
    """`key`, the secret, is set in the answer to its creation and never again."""

    id: str
    name: str
    key: str | None = None
    created_at: datetime
    last_used_at: datetime | None = None
