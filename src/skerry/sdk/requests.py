"""The bodies of requests and answers: what is wrong with one is told as an error of ours. Sends nothing."""

from enum import Enum
from typing import Final, TypeVar

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from skerry.model.errors import Invalid, ProtocolError
from skerry.wire.base import Answer, Request

R = TypeVar("R", bound=Request)
A = TypeVar("A", bound=Answer)


class Left(Enum):
    """The one value that stands for "left out" where None means something else."""

    OUT = "left out"

    def __repr__(self) -> str:
        return "LEFT_OUT"


LEFT_OUT: Final = Left.OUT


def request_of(shape: type[R], **members: object) -> R:
    """A request of this shape.

    Raises:
        Invalid: A member is out of range; the message names it.
    """
    try:
        return shape.model_validate(members)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"])
        raise Invalid(f"{name or 'request'}: {first['msg']}", field=name or None) from error


def body_of(request: Request, *, nulls: bool = False) -> bytes:
    """The request as JSON, without what was left out; `nulls` keeps the members that were given as None.

    Raises:
        Invalid: Text in it is none that JSON can say.
    """
    try:
        return request.model_dump_json(by_alias=True, exclude_none=not nulls, exclude_unset=nulls).encode()
    except PydanticSerializationError as error:
        raise Invalid("The request holds text that is not UTF-8, which this call cannot send.") from error


def answer_of(shape: type[A], body: bytes) -> A:
    """The answer in `body`.

    Raises:
        ProtocolError: It is none of this shape: it was cut, or comes from something that is no Skerry server.
    """
    try:
        return shape.model_validate_json(body)
    except ValidationError as error:
        # Not the body itself, which may hold secrets: only a page of some proxy is shown.
        page = body[:200].decode("utf-8", "replace").strip() if body.lstrip().startswith(b"<") else ""
        first = error.errors(include_input=False)[0]
        why = page or f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}".removeprefix(": ")
        raise ProtocolError(
            f"What answered is not a Skerry server, or of another version ({why}). Check SKERRY_URL, and any proxy."
        ) from error
