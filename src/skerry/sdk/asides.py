"""Work that blocks (a disk's), where it must not hold up an event loop; the blocking half does it on the spot."""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Its result, worked out in a thread."""
    import asyncio

    return await asyncio.to_thread(work, *args, **kwargs)


def directly(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Its result, worked out here: what stands in for `to_thread` in the blocking half."""
    return work(*args, **kwargs)
