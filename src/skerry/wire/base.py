"""What all shapes share: requests refuse unknown fields, answers may gain fields without breaking an older client."""

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

T = TypeVar("T")


class Request(BaseModel):
    """A body sent by a client. An unknown field is an error that names it."""

    # What is wrong is told without what was sent: it may be a secret, and messages end in logs.
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Answer(BaseModel):
    """A body sent by the server."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class Page(Answer, Generic[T]):
    """One page of a list, newest first. `next` is the `before` of the following page; None at the end."""

    data: list[T]
    next: str | None = None


class ErrorDetail(Answer):
    """`code` is stable; `message` says what, why and what to do; `field` names the wrong member of the request."""

    code: str
    message: str
    field: str | None = None


class ErrorBody(Answer):
    error: ErrorDetail
