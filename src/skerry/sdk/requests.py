"""Making the bodies of requests: what is wrong with one is told before anything is sent."""

from typing import TypeVar

from pydantic import ValidationError

from skerry.model.errors import Invalid
from skerry.wire.base import Request

R = TypeVar("R", bound=Request)


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


def body_of(request: Request) -> bytes:
    """The request as JSON, without what was left out."""
    return request.model_dump_json(by_alias=True, exclude_none=True).encode()
