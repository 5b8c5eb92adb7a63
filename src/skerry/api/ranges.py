"""HTTP byte ranges (RFC 9110, section 14). Pure."""

import re
from dataclasses import dataclass

from skerry.model.errors import Invalid

_RANGE = re.compile(r"\s*bytes\s*=\s*(\d{0,19})\s*-\s*(\d{0,19})\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ByteRange:
    """`start` … `end`, both included; `end` None: to the end. `start` None: the last `end` bytes."""

    start: int | None
    end: int | None


def parse(header: str | None) -> ByteRange | None:
    """The range asked for; None = the whole, which several ranges, other units and nonsense mean too."""
    found = _RANGE.fullmatch(header) if header else None
    if found is None or (not found[1] and not found[2]):
        return None
    start = int(found[1]) if found[1] else None
    end = int(found[2]) if found[2] else None
    if start is not None and end is not None and end < start:
        return None
    return ByteRange(start, end)


def resolve(wanted: ByteRange, size: int) -> tuple[int, int]:
    """The first byte and the number of bytes.

    Raises:
        Invalid: Nothing of the range exists; code `range_not_satisfiable`.
    """
    if wanted.start is None:
        length = min(wanted.end or 0, size)
        start = size - length
    else:
        start = wanted.start
        length = (size if wanted.end is None else min(wanted.end + 1, size)) - start
    if length <= 0:
        raise Invalid(f"The file has {size} bytes: nothing of that range exists.", code="range_not_satisfiable")
    return start, length
