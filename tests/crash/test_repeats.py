"""The API dies in the middle of many calls of a client that repeats them: all are answered, and each has run once."""

import asyncio
import os
import signal

from crash.instances import CrashServer

from skerry import AsyncSkerry

CALLS = 120
ANSWERED_FIRST = 20


async def test_f34_every_call_is_answered_over_a_killed_api_and_runs_once(crash: CrashServer) -> None:
    async with AsyncSkerry(crash.url, crash.key, timeout_s=60) as client:
        boxes = [await client.create() for _ in range(4)]
        answered: list[int | None] = []
        pid = crash.pid("api")

        async def call(number: int) -> None:
            told = await boxes[number % 4].commands.run(f"echo {number} >> ran; exit {number}")
            answered.append(told.exit_code)
            if len(answered) == ANSWERED_FIRST:
                os.kill(pid, signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            for number in range(CALLS):
                group.create_task(call(number))
        await asyncio.to_thread(crash.restarted, "api", pid)
        ran = sorted([int(n) for box in boxes for n in (await box.files.read("ran")).split()])
        for box in boxes:
            await box.destroy()
    assert sorted(code for code in answered if code is not None) == ran == list(range(CALLS))
