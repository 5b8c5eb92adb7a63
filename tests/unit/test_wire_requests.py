"""What holds for every body that a client sends."""

from enum import Enum
from typing import Any, get_args

import pytest
from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

import skerry.wire.commands
import skerry.wire.files
import skerry.wire.keys
import skerry.wire.sandboxes  # noqa: F401 - their shapes are found among the subclasses
from skerry.wire.base import Request


def shapes(kind: type[Request] = Request) -> list[type[Request]]:
    return [kind, *(inner for each in kind.__subclasses__() for inner in shapes(each))]


def enums(annotation: Any) -> list[type[Enum]]:
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Enum) else []
    return [found for each in get_args(annotation) for found in enums(each)]


CHOICES = [
    pytest.param(field, enum, id=f"{shape.__name__}.{name}")
    for shape in shapes()
    for name, field in shape.model_fields.items()
    for enum in enums(field.annotation)
]


@pytest.mark.parametrize(("field", "enum"), CHOICES)
def test_a_choice_is_taken_as_its_text(field: FieldInfo, enum: type[Enum]) -> None:
    """Bodies are strict, and JSON has no enums."""
    taker: TypeAdapter[Any] = TypeAdapter(field.rebuild_annotation(), config={"strict": True})
    for choice in enum:
        assert taker.validate_python(choice.value) is choice
