"""The API dies in the middle of many calls: what was answered is on record, and the database is whole."""

import asyncio
import os
import signal
import sqlite3
from contextlib import closing

from crash.instances import SETTLED_S, CrashServer

from skerry import AsyncSandbox, AsyncSkerry, CommandResult, SkerryError

CALLS = 200
ANSWERED_FIRST = 20


async def test_f34_two_hundred_calls_at_once_and_the_api_is_killed(crash: CrashServer) -> None:
    async with AsyncSkerry(crash.url, crash.key, timeout_s=60, retries=0) as client:
        boxes = [await client.create() for _ in range(4)]
        answered: list[CommandResult] = []
        pid = crash.pid("api")

        async def call(number: int) -> None:
            try:
                told = await boxes[number % 4].commands.run(f"echo {number} >> ran; exit {number}")
            except SkerryError:
                return
            answered.append(told)
            if len(answered) == ANSWERED_FIRST:
                os.kill(pid, signal.SIGKILL)

        async with asyncio.TaskGroup() as group:
            for number in range(CALLS):
                group.create_task(call(number))
        await asyncio.to_thread(crash.restarted, "api", pid)
        assert len(answered) < CALLS

        ids = [command_id for box in boxes for command_id in crash.commands_of(box.id)]
        assert {told.id for told in answered} <= set(ids)
        ends = {command_id: await _ended(boxes[0], command_id) for command_id in ids}
        ran = sorted([int(n) for box in boxes for n in (await box.files.read("ran")).split()])
    assert len(ran) == len(set(ran)), "a command ran twice"
    for told in answered:
        assert (ends[told.id].status, ends[told.id].exit_code) == ("completed", told.exit_code)
    completed = sorted(end.exit_code for end in ends.values() if end.exit_code is not None)
    assert completed == ran
    assert {end.reason for end in ends.values()} <= {None, "not_started"}
    assert {end.status for end in ends.values()} <= {"completed", "failed"}
    with closing(sqlite3.connect(f"file:{crash.database}?mode=ro", uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert database.execute("PRAGMA foreign_key_check").fetchall() == []


async def _ended(box: AsyncSandbox, command_id: str) -> CommandResult:
    async with asyncio.timeout(SETTLED_S):
        running = await box.commands.get(command_id)
        while (now := await running.poll()).status == "running":  # noqa: ASYNC110 (the other side of HTTP)
            await asyncio.sleep(0.1)
    return now
