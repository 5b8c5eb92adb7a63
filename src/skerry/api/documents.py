"""Clients' own JSON: metadata and the like. It must come back as it was, so what could not is refused. Pure."""

import json
from typing import cast

from skerry.model.errors import Invalid

_DOCUMENT_LIMIT = 65_536
_DOCUMENT_DEPTH = 32  # far below what reading it back can take


def document(name: str, value: dict[str, object] | None) -> dict[str, object] | None:
    """The document in the field `name`, as it was given.

    Raises:
        Invalid: There is NaN or broken text in it, or it is beyond the bounds.
    """
    try:
        size = len(json.dumps(value, allow_nan=False, ensure_ascii=False).encode())
    except (ValueError, RecursionError) as error:
        raise Invalid(f"'{name}' holds what JSON cannot say: {type(error).__name__}.", field=name) from error
    if _depth(value) > _DOCUMENT_DEPTH:
        raise Invalid(f"'{name}' is nested more than {_DOCUMENT_DEPTH} levels deep.", field=name)
    if size > _DOCUMENT_LIMIT:
        raise Invalid(f"'{name}' is {size} bytes; at most {_DOCUMENT_LIMIT} are kept.", field=name)
    return value


def _depth(value: object) -> int:
    """How many levels of lists and objects stand in each other."""
    level, depth = [value], 0
    while level:
        inner: list[object] = []
        for one in level:
            if isinstance(one, dict):
                inner += cast(dict[str, object], one).values()
            elif isinstance(one, list):
                inner += cast(list[object], one)
        depth, level = depth + 1, inner
    return depth - 1
