"""What all shapes share: requests refuse unknown fields, answers may gain fields without breaking an older client."""

from typing import Annotated, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

T = TypeVar("T")

# A name for people. It is shown on terminals and in lists: no control characters, no line or paragraph separators, none
# that turn the direction of what stands around them.
PersonalName = Annotated[
    str,
    StringConstraints(
        min_length=1,
        max_length=200,
        pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]*$",
    ),
]


class Request(BaseModel):
    """A body sent by a client. An unknown field, or one of another JSON type, is an error that names it.

    Strict: "256" and true are no numbers. Who sends them means something else than what would be made of them.
    """

    # What is wrong is told without what was sent: it may be a secret, and messages end in logs.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


class Answer(BaseModel):
    """A body sent by the server."""

    model_config = ConfigDict(extra="ignore", frozen=True, hide_input_in_errors=True)


class Page(Answer, Generic[T]):
    """One page of a list, newest first. `next` is the `before` of the following page; None at the end."""

    data: list[T]
    next: str | None = None


class ErrorDetail(Answer):
    """`code` is stable; `message` says what, why and what to do; `field` names the wrong member of the request.

    `request_id`, where the fault is the server's, is by which its log is searched.
    """

    code: str
    message: str
    field: str | None = None
    request_id: str | None = None


class ErrorBody(Answer):
    error: ErrorDetail
