"""Sending a long body to a peer that may answer before it has all of it. Knows neither streams nor calls."""

import asyncio
from collections.abc import Coroutine
from typing import Any


async def send_until_answered(sending: Coroutine[Any, Any, None], answered: Coroutine[Any, Any, object]) -> None:
    """Run `sending` to its end, or until `answered` has ended: a source that gives nothing must not hold an answer up.

    Neither goes on afterwards. What either raises is raised.
    """
    tasks = asyncio.ensure_future(sending), asyncio.ensure_future(answered)
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
