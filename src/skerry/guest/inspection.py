"""What runs and listens inside, over one connection: listings of lines, bounded and checked."""

from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

from skerry.guest import answers, frames
from skerry.guest.connection import Connection
from skerry.guest.files import ANSWER_S, lines
from skerry.model.process import ListeningPort, Process

T = TypeVar("T")

MOST = 16_384  # of either; sbxd tells fewer


async def processes(connection: Connection) -> list[Process]:
    return await _listing(connection, "processes", answers.read_process)


async def ports(connection: Connection) -> list[ListeningPort]:
    return await _listing(connection, "ports", answers.read_port)


async def _listing(connection: Connection, op: str, read: Callable[[dict[str, Any]], T]) -> list[T]:
    stream = await connection.open({"op": op})
    found: list[T] = []
    try:
        async with aclosing(lines(stream)) as told:
            async for line in told:
                found.append(connection.checked(read, connection.checked(frames.decode_json, line)))
                if len(found) > MOST:
                    raise stream.reject("a listing without end")
        connection.checked(answers.number, await stream.result(ANSWER_S), "count", len(found), len(found))
        return found
    finally:
        stream.close()
