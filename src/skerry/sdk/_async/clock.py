"""Waiting, in the manner of this half of the client."""

import asyncio


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)
